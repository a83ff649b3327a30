// Makes the replica set of one member, unless it is there.
try {
  rs.initiate({ _id: "rs0", members: [{ _id: 0, host: "mongodb:27017" }] });
} catch (error) {
  if (error.codeName !== "AlreadyInitialized") throw error;
}
