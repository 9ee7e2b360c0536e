"""Readiness and metadata of a Triton server."""

from collections.abc import Callable
from typing import Any, TypeVar

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from qwen3_tts_client.errors import ClientError, ExitCode
from qwen3_tts_client.stream import CHANNEL_OPTIONS

RPC_TIMEOUT_S = 10.0
_T = TypeVar("_T")


class Server:
    """Every method raises ClientError if the server does not respond."""

    def __init__(self, url: str, model_name: str) -> None:
        self.url = url
        self.model_name = model_name
        self._channel = grpc.insecure_channel(url, options=CHANNEL_OPTIONS)
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *exc: object) -> None:
        self._channel.close()

    def check_ready(self) -> None:
        """Raises ClientError if the server is unreachable, not ready, or without the model."""
        if not self._call(self.stub.ServerReady, service_pb2.ServerReadyRequest()).ready:
            raise ClientError(f"{self.url}: the server is up but not ready", ExitCode.SERVER)
        try:
            model = self._call(self.stub.ModelReady, service_pb2.ModelReadyRequest(name=self.model_name))
            ready = bool(model.ready)
        except ClientError:
            ready = False
        if not ready:
            raise ClientError(f"{self.url}: {self._unready_reason()}", ExitCode.SERVER)

    def describe(self) -> dict[str, Any]:
        """Name and version of the server, and the model's parameters."""
        metadata = self._call(self.stub.ServerMetadata, service_pb2.ServerMetadataRequest())
        config = self._call(self.stub.ModelConfig, service_pb2.ModelConfigRequest(name=self.model_name)).config
        parameters = {name: value.string_value for name, value in sorted(config.parameters.items())}
        return {"server": metadata.name, "server_version": metadata.version, "model_parameters": parameters}

    def _unready_reason(self) -> str:
        index = self._call(self.stub.RepositoryIndex, service_pb2.RepositoryIndexRequest())
        states = {model.name: f"{model.state} {model.reason}".strip() for model in index.models}
        if self.model_name in states:
            return f"model {self.model_name} is not ready: {states[self.model_name]}"
        return f"no model {self.model_name}; the server has {', '.join(sorted(states)) or 'none'}"

    def _call(self, method: Callable[..., _T], message: object) -> _T:
        try:
            return method(message, timeout=RPC_TIMEOUT_S)
        except grpc.RpcError as error:
            raise ClientError(f"{self.url}: {error.details()} ({error.code().name})", ExitCode.SERVER) from None
