"""Executes the examples of /v1/openapi.json against the server, and compares each answer with its description.

It prints each difference, and ends with exit code 1 if there is one.
"""

import json
import os
import sys
import urllib.error
import urllib.parse
import urllib.request

import jsonschema_rs

URL = os.environ["TIDEGAUGE_URL"]
HEADERS = {"Authorization": "Bearer " + os.environ["TIDEGAUGE_TOKEN"]}

# The example of an answer is the answer to a query with the examples of these parameters.
OF_ANSWERS = ["device", "metric", "from", "to"]


def main():
    status, _, body = send("GET", "/v1/openapi.json")
    assert status == 200, status
    checker = Checker(json.loads(body))
    checker.check_descriptions()
    for method in ["post", "get", "put", "patch", "delete"]:  # the queries read the posted readings
        for path, item in checker.document["paths"].items():
            if method in item:
                checker.execute(method, path, item[method])
    if checker.found:
        sys.exit("\n".join(checker.found))
    print(f"{checker.requests} requests")


def send(method, target, body=None, headers=None):
    request = urllib.request.Request(URL + target, body, HEADERS | (headers or {}), method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


class Checker:
    def __init__(self, document):
        self.document, self.found, self.requests = document, [], 0

    def check_descriptions(self):
        """Checks that each part for readers has a text, and each part that a client sends has an example."""
        names = [operation["operationId"] for _, _, operation in self.operations()]
        if len(names) != len(set(names)):
            self.found.append("two operations have one operationId")
        for path, method, operation in self.operations():
            where = f"{method} {path}"
            self.need(operation, ["summary", "operationId", "tags", "security"], where)
            for parameter in operation["parameters"]:
                self.need(parameter, ["description", "schema", "example"], f"{where} {parameter['name']}")
            for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
                if content:  # a binary body has no example
                    self.need(content, ["schema", "example"], f"{where} {media_type}")
            for status, response in operation["responses"].items():
                self.need(response, ["description"], f"{where} {status}")
        for name, schema in self.document["components"]["schemas"].items():
            self.check_fields(name, schema)

    def operations(self):
        for path, item in self.document["paths"].items():
            for method, operation in item.items():
                yield path, method, operation

    def check_fields(self, where, schema):
        """Each field of an answer has a description. The fields of a condition describe nothing."""
        for part in schema.get("allOf", []):
            self.check_fields(where, part)
        for name, field in schema.get("properties", {}).items():
            if "$ref" not in field and "oneOf" not in field:
                self.need(field, ["description"], f"{where}.{name}")
            self.check_fields(f"{where}.{name}", field)
        if isinstance(items := schema.get("items"), dict):
            self.check_fields(where + "[]", items)

    def need(self, part, keys, where):
        self.found += [f"{where}: no {key}" for key in keys if not part.get(key)]

    def execute(self, method, path, operation):
        """Sends each example: each body, and each parameter alone, because some exclude each other."""
        parameters = operation["parameters"]
        for parameter in parameters:
            if parameter["in"] == "path":
                path = path.replace("{" + parameter["name"] + "}", parameter["example"])
        optional = [parameter for parameter in parameters if parameter["in"] != "path"]
        chosen = [parameter for parameter in optional if parameter["name"] in OF_ANSWERS]
        if operation.get("requestBody") and not any(content for _, content in self.bodies(operation)):
            return  # its bodies are binary
        bodies = [(kind, content["example"]) for kind, content in self.bodies(operation) if content]
        for kind, example in bodies or [(None, None)]:
            body = None if kind is None else encoded(kind, example)
            headers = {} if kind is None else {"Content-Type": kind}
            # A statement and the range of a deletion are required, in one of several parameters.
            always = [parameter for parameter in optional if parameter["name"] == "q" and not kind]
            always += [parameter for parameter in chosen if method == "delete"]
            self.check(method, path, operation, always, body, headers)
            for parameter in optional:
                # A cursor needs the range that it came from, and no parameter that names devices.
                is_cursor = parameter["name"] == "cursor"
                beside = [other for other in chosen if is_cursor and other["name"] != "device"]
                beside += [other for other in always if parameter["name"] != "all" and other is not parameter]
                self.check(method, path, operation, [*beside, parameter], body, headers)
        expected = operation["responses"].get("200", {}).get("content", {}).get("application/json", {}).get("example")
        if expected is not None:
            found = self.check(method, path, operation, chosen, None, {})
            if json.loads(found) != expected:
                self.found.append(f"{method} {path}: the example of the answer is\n{expected}, not\n{found}")
            for kind in [kind for kind in operation["responses"]["200"]["content"] if kind != "application/json"]:
                self.check(method, path, operation, chosen, None, {"Accept": kind})

    @staticmethod
    def bodies(operation):
        return operation.get("requestBody", {}).get("content", {}).items()

    def check(self, method, path, operation, parameters, body, headers):
        self.requests += 1
        pairs = [pair for parameter in parameters if parameter["in"] == "query" for pair in exploded(parameter)]
        headers = headers | {parameter["name"]: parameter["example"] for parameter in parameters
                             if parameter["in"] == "header"}
        target = path + ("?" + urllib.parse.urlencode(pairs) if pairs else "")
        status, answered, content = send(method.upper(), target, body, headers)
        where = f"{method} {target} {headers}"
        if status == 404 and path.startswith("/dashboard/"):
            return content  # no example knows the hash
        if status >= 400:
            self.found.append(f"{where}: {status} {content[:500]}")
            return content
        response = operation["responses"].get(str(status))
        if response is None:
            self.found.append(f"{where}: the status {status} is not described")
            return content
        described = response.get("content", {})
        kind = (answered["Content-Type"] or "").split(";")[0]
        if content and kind not in described:
            self.found.append(f"{where}: the type {kind} is not described")
        elif kind == "application/json" and "chunked" not in target:
            schema = closed(described[kind].get("schema", {}), self.document["components"]["schemas"])
            validator = jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
            self.found += [f"{where}: {error.message} at {error.instance_path}: {content[:500]}"
                           for error in validator.iter_errors(json.loads(content))]
        return content


def encoded(kind, example):
    if kind == "application/x-www-form-urlencoded":
        return urllib.parse.urlencode(example).encode()
    return (example if isinstance(example, str) else json.dumps(example)).encode()


def exploded(parameter):
    name, example = parameter["name"], parameter["example"]
    if isinstance(example, dict):
        return list(example.items())
    if isinstance(example, list):
        return [(name, item) for item in example] if parameter["explode"] else [(name, ",".join(example))]
    return [(name, json.dumps(example) if isinstance(example, bool) else example)]


def closed(schema, components, is_part=False):
    """The schema with its references resolved, which allows no field that it does not name."""
    if "$ref" in schema:
        return closed(components[schema["$ref"].rpartition("/")[2]], components, is_part)
    schema = dict(schema)
    for key in ["allOf", "anyOf", "oneOf"]:
        if key in schema:
            schema[key] = [closed(part, components, True) for part in schema[key]]
    if isinstance(schema.get("items"), dict):
        schema["items"] = closed(schema["items"], components)
    if isinstance(schema.get("additionalProperties"), dict):
        schema["additionalProperties"] = closed(schema["additionalProperties"], components)
    if "properties" in schema:
        schema["properties"] = {name: closed(part, components) for name, part in schema["properties"].items()}
    has_fields = "properties" in schema or "allOf" in schema or "anyOf" in schema or "oneOf" in schema
    if has_fields and not is_part:
        schema["unevaluatedProperties"] = False
    return schema


main()
