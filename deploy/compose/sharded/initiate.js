// Makes the replica sets of the config servers and the shards, unless they are there.
const sets = {
  config: ["config-1:27017", "config-2:27017", "config-3:27017"],
  "shard-1": ["shard-1:27017"],
  "shard-2": ["shard-2:27017"],
};
for (const [name, hosts] of Object.entries(sets)) {
  const admin = connect(`mongodb://${hosts[0]}/admin?directConnection=true`);
  const set = { _id: name, members: hosts.map((host, _id) => ({ _id, host })) };
  if (name === "config") set.configsvr = true;
  try {
    admin.runCommand({ replSetInitiate: set });
  } catch (error) {
    if (error.codeName !== "AlreadyInitialized") throw error;
  }
  while (!admin.hello().isWritablePrimary && !admin.hello().primary) sleep(500);
}
