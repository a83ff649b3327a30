"""Publishes with paho-mqtt: paho_publish.py PORT TOKEN. It fails unless each message is acknowledged."""

import json
import sys

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

START_MS = 1_713_621_600_000
port, token = int(sys.argv[1]), sys.argv[2]


def client(version, password):
    made = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=f"paho-{version}", protocol=version)
    made.username_pw_set("any", password)
    made.codes = []
    made.on_publish = lambda _client, _data, _id, code, _properties: made.codes.append(code.value)
    made.on_connect_fail = lambda *_: sys.exit("no connection")
    return made


for version, name in [(mqtt.MQTTv5, "5"), (mqtt.MQTTv311, "311")]:
    paho = client(version, token)
    paho.connect("127.0.0.1", port)
    paho.loop_start()
    for n in range(300):
        payload = json.dumps({"ts": START_MS + n, "value": n})
        paho.publish(f"plant/north/paho-{name}/temp", payload, qos=1).wait_for_publish(60)
    paho.publish("own/x", "nonsense", qos=1).wait_for_publish(60)
    paho.disconnect()
    paho.loop_stop()
    expected = [0] * 300 + [0x99 if version == mqtt.MQTTv5 else 0]
    assert paho.codes == expected, paho.codes

refused = []
paho = client(mqtt.MQTTv5, "wrong")
paho.on_connect = lambda client, _data, _flags, code, _properties: (refused.append(str(code)), client.disconnect())
paho.connect("127.0.0.1", port)
paho.loop_forever()
assert refused == ["Bad user name or password"], refused
