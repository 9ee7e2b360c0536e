"""The OpenAPI document describes the routes and schemas that there are."""

import re
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator
from starlette.routing import Route

from qwen3_tts_gateway.access import KEYS_VARIABLE, new_key
from qwen3_tts_gateway.app import make_app
from qwen3_tts_gateway.openapi import document
from qwen3_tts_gateway.schema import SpeechBody
from tests.fakes.gateway import RunningGateway
from tests.fakes.stub_server import StubServer

# The pages and the document itself.
UNDESCRIBED = {"/", "/page/{file}", "/docs", "/openapi.json"}


def every_reference(node: Any) -> list[str]:
    if isinstance(node, list):
        return [found for item in node for found in every_reference(item)]
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [found for item in node.values() for found in every_reference(item)]
    return []


def test_every_route_is_described(gateway: RunningGateway) -> None:
    routes = [route for route in make_app(gateway.services).routes if isinstance(route, Route)]
    served = {
        (re.sub(r":\w+}", "}", route.path), method.lower())
        for route in routes
        for method in (route.methods or set()) - {"HEAD"}
        if route.path not in UNDESCRIBED
    }
    assert served == {(path, method) for path, methods in document()["paths"].items() for method in methods}


def test_schemas_are_valid_and_complete() -> None:
    schemas = document()["components"]["schemas"]
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
    assert set(every_reference(document())) <= {f"#/components/schemas/{name}" for name in schemas}
    assert set(schemas["SpeechBody"]["properties"]) == set(SpeechBody.model_fields)


def test_the_document_and_its_page_need_no_key(stub: StubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEYS_VARIABLE, new_key("anna")[1])
    with RunningGateway(stub.url) as gateway, httpx.Client(base_url=gateway.url) as client:
        assert client.get("/openapi.json").json() == document()
        page = client.get("/docs")
        assert (page.headers["content-type"], "page/docs.js" in page.text) == ("text/html; charset=utf-8", True)
