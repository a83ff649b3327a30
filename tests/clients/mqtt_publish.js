// Publishes with MQTT.js: mqtt_publish.js PORT [TOKEN]. It fails unless each message is acknowledged. With a token,
// the other end is tidegauge, which must refuse a subscription, and also a wrong token.

const mqtt = require("mqtt");
const assert = require("node:assert");

const START_MS = 1_713_621_600_000;
const [port, token] = process.argv.slice(2);
const url = `mqtt://127.0.0.1:${port}`;

async function publish(protocolVersion, name) {
  const credentials = token ? { username: "any", password: token } : {};
  const client = await mqtt.connectAsync(url, { protocolVersion, clientId: name, ...credentials }, false);
  const readings = Array.from({ length: 300 }, (_, n) => JSON.stringify({ ts: START_MS + n, value: n }));
  await Promise.all(readings.map((reading) => client.publishAsync(`plant/north/${name}/temp`, reading, { qos: 1 })));
  if (token) {
    await assert.rejects(client.subscribeAsync("a/#", { qos: 1 }), /Subscribe error/);
    const nonsense = client.publishAsync("own/x", "nonsense", { qos: 1 });
    await (protocolVersion === 5 ? assert.rejects(nonsense, { code: 0x99 }) : nonsense);
    const wrong = mqtt.connectAsync(url, { protocolVersion, username: "any", password: "wrong" }, false);
    await assert.rejects(wrong, { code: protocolVersion === 5 ? 0x86 : 4 });
  }
  await client.endAsync();
}

async function main() {
  await publish(5, "mqtt-js-5");
  await publish(4, "mqtt-js-311");
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
