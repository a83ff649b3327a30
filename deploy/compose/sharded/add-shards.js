// Adds the shards to the cluster. A shard that is there already changes nothing.
for (const shard of ["shard-1/shard-1:27017", "shard-2/shard-2:27017"]) sh.addShard(shard);
