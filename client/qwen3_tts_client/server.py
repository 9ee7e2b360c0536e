"""Readiness and metadata of a Triton server."""

from collections.abc import Callable
from typing import Any, TypeVar

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from qwen3_tts_client.errors import ClientError, ExitCode
from qwen3_tts_client.protocol import MODEL_NAME
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
        """Raises ClientError if the server is unreachable, or the model missing or not ready.

        Asks for the model alone: a server since Triton 26.09 is not ready while any of its models is not.
        """
        name = self.model_name
        try:
            ready = self.stub.ModelReady(service_pb2.ModelReadyRequest(name=name), timeout=RPC_TIMEOUT_S).ready
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                raise self._failed(error) from None
            ready = False
        if ready:
            return
        try:
            self.stub.ModelMetadata(service_pb2.ModelMetadataRequest(name=name), timeout=RPC_TIMEOUT_S)
        except grpc.RpcError:
            reason = f"unknown model {name!r}; {self._choice()}"
            raise ClientError(f"{self.url}: {reason}", ExitCode.SERVER) from None
        reason = f"model {name!r} is not ready: it is starting, draining or dead; see the server's log"
        raise ClientError(f"{self.url}: {reason}", ExitCode.SERVER)

    def _choice(self) -> str:
        """Servers of this project list their models only for a caller with the admin key."""
        try:
            index = self.stub.RepositoryIndex(service_pb2.RepositoryIndexRequest(ready=True), timeout=RPC_TIMEOUT_S)
        except grpc.RpcError:
            return f"give --model-name the name of a folder in the server's model repository, such as {MODEL_NAME}"
        names = ", ".join(sorted({model.name for model in index.models})) or "none is loaded"
        return f"choose one of {names} with --model-name"

    def describe(self) -> dict[str, Any]:
        """Name and version of the server, and the parameters of config.pbtxt, which its environment may override."""
        metadata = self._call(self.stub.ServerMetadata, service_pb2.ServerMetadataRequest())
        config = self._call(self.stub.ModelConfig, service_pb2.ModelConfigRequest(name=self.model_name)).config
        parameters = {name: value.string_value for name, value in sorted(config.parameters.items())}
        return {"server": metadata.name, "server_version": metadata.version, "config_parameters": parameters}

    def _call(self, method: Callable[..., _T], message: object) -> _T:
        try:
            return method(message, timeout=RPC_TIMEOUT_S)
        except grpc.RpcError as error:
            raise self._failed(error) from None

    def _failed(self, error: grpc.RpcError) -> ClientError:
        remedy = "; start the server, or name another with --url" if error.code() is grpc.StatusCode.UNAVAILABLE else ""
        return ClientError(f"{self.url}: {error.details()} ({error.code().name}){remedy}", ExitCode.SERVER)
