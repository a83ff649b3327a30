"""Teaches schemathesis bodies that it cannot make or send by itself: binary ones, and lines."""

import schemathesis
from hypothesis import strategies

BINARY = strategies.binary(max_size=4096)

schemathesis.openapi.media_type("application/x-protobuf", BINARY)
schemathesis.openapi.media_type("application/senml+cbor", BINARY)


@schemathesis.serializer("application/x-ndjson", "application/x-protobuf", "application/senml+cbor")
def as_it_is(_, value):
    return value if isinstance(value, bytes) else str(value).encode(errors="replace")
