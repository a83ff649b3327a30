"""Exports metrics with the OTLP exporter of opentelemetry-python, plain and gzip. Takes the URL of the server and a
token."""

import logging
import sys

from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult
from opentelemetry.sdk.resources import Resource

URL, TOKEN = sys.argv[1:]
logging.disable(logging.CRITICAL)  # the exporter logs the refusal that is expected


def metrics(device):
    reader = InMemoryMetricReader()
    names = {"device.id": device, "service.name": "plant", "service.instance.id": "1"}
    resource = Resource.create({**names, "site": "north hall", "floor": 2})
    provider = MeterProvider(resource=resource, metric_readers=[reader])
    meter = provider.get_meter("pumps")
    starts = meter.create_counter("pump.starts")
    starts.add(3, {"line": "a"})
    starts.add(4, {"line": "b", "spare": True})
    meter.create_up_down_counter("pump.running").add(-2)
    meter.create_gauge("temp", unit="Cel").set(22.5, {"room": "hall"})
    meter.create_observable_gauge("level", [lambda options: []])
    meter.create_histogram("latency", unit="s").record(0.2)
    data = reader.get_metrics_data()
    provider.shutdown()
    return data


def export(device, token, compression):
    headers = {"Authorization": f"Bearer {token}"}
    endpoint = f"{URL}/v1/metrics"
    exporter = OTLPMetricExporter(endpoint=endpoint, headers=headers, compression=compression, timeout=60)
    return exporter.export(metrics(device))


for name, compression in [("plain", Compression.NoCompression), ("gzip", Compression.Gzip)]:
    assert export(f"otlp-{name}", TOKEN, compression) is MetricExportResult.SUCCESS
assert export("stranger", "wrong", Compression.NoCompression) is MetricExportResult.FAILURE
