"""JSON Schemas of the custom resources, as far as the chart uses them; their definitions are not part of Kubernetes.

Fields are those of keda.sh/v1alpha1, monitoring.coreos.com/v1, gateway.networking.k8s.io/v1 and Envoy Gateway's
gateway.envoyproxy.io/v1alpha1.
"""

from typing import Any

Schema = dict[str, Any]
STRING: Schema = {"type": "string", "minLength": 1}
POSITIVE: Schema = {"type": "integer", "minimum": 1}
DURATION: Schema = {"type": "string", "pattern": r"^(\d+(\.\d+)?(ms|s|m|h))+$"}


def fields(required: str = "", **properties: Schema) -> Schema:
    """An object without other fields; `required` has names separated by spaces."""
    return {"type": "object", "additionalProperties": False, "required": required.split(), "properties": properties}


def items(schema: Schema, maximum: int = 1000) -> Schema:
    return {"type": "array", "minItems": 1, "maxItems": maximum, "items": schema}


def resource(version: str, spec: Schema) -> Schema:
    return fields(
        "apiVersion kind metadata spec",
        apiVersion={"const": version},
        kind=STRING,
        metadata={"type": "object", "required": ["name", "labels"]},
        spec=spec,
    )


SCALING_POLICY = fields(
    "type value periodSeconds", type={"enum": ["Pods", "Percent"]}, value=POSITIVE, periodSeconds=POSITIVE
)
SCALING_RULES = fields(
    "policies",
    stabilizationWindowSeconds={"type": "integer", "minimum": 0, "maximum": 3600},
    policies=items(SCALING_POLICY),
)
# KEDA takes all metadata of a trigger as strings.
PROMETHEUS_TRIGGER = fields(
    "type metadata",
    type={"const": "prometheus"},
    metricType={"enum": ["AverageValue", "Value"]},
    metadata=fields(
        "serverAddress query threshold",
        serverAddress={"type": "string", "pattern": "^https?://"},
        query=STRING,
        threshold={"type": "string", "pattern": r"^\d+(\.\d+)?$"},
        ignoreNullValues={"enum": ["true", "false"]},
    ),
)
SCALED_OBJECT = fields(
    "scaleTargetRef triggers",
    scaleTargetRef=fields("name", name=STRING),
    pollingInterval=POSITIVE,
    minReplicaCount=POSITIVE,
    maxReplicaCount=POSITIVE,
    advanced=fields(
        horizontalPodAutoscalerConfig=fields(behavior=fields(scaleUp=SCALING_RULES, scaleDown=SCALING_RULES))
    ),
    triggers=items(PROMETHEUS_TRIGGER),
)
SERVICE_MONITOR = fields(
    "selector endpoints",
    selector=fields("matchLabels", matchLabels={"type": "object", "minProperties": 1}),
    endpoints=items(fields("port", port=STRING, path={"type": "string", "pattern": "^/"}, interval=DURATION)),
)
METHOD = fields("method", method=fields("service method", service=STRING, method=STRING))
BACKEND = fields("name port", name=STRING, port=POSITIVE)
# The first releases with GRPCRoute v1 allow 16 rules of 8 matches.
GRPC_ROUTE = fields(
    "parentRefs rules",
    parentRefs=items(fields("name", name=STRING, namespace=STRING, sectionName=STRING, port=POSITIVE)),
    hostnames=items(STRING, 16),
    rules=items(fields("backendRefs", matches=items(METHOD, 8), backendRefs=items(BACKEND, 16)), 16),
)
LIMIT: Schema = {"type": "integer", "minimum": 0, "maximum": 2**32 - 1}
BACKEND_TRAFFIC_POLICY = fields(
    "targetRefs",
    targetRefs=items(fields("group kind name", group=STRING, kind=STRING, name=STRING), 16),
    loadBalancer=fields("type", type={"enum": ["ConsistentHash", "LeastRequest", "Random", "RoundRobin"]}),
    timeout=fields(http=fields(requestTimeout=DURATION)),
    circuitBreaker=fields(maxConnections=LIMIT, maxPendingRequests=LIMIT, maxParallelRequests=LIMIT),
)
SCHEMAS = {
    "ScaledObject": resource("keda.sh/v1alpha1", SCALED_OBJECT),
    "ServiceMonitor": resource("monitoring.coreos.com/v1", SERVICE_MONITOR),
    "GRPCRoute": resource("gateway.networking.k8s.io/v1", GRPC_ROUTE),
    "BackendTrafficPolicy": resource("gateway.envoyproxy.io/v1alpha1", BACKEND_TRAFFIC_POLICY),
}
