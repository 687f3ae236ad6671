# ruff: noqa: INP001, T201 - a script that prints
"""Prints `.env.example`: what `docker compose` reads, with the meaning and default of each variable."""

import textwrap

from service.settings import options

# The image listens on all its addresses, on the port that the compose file publishes, has its models, and
# writes into its volume.
FIXED_BY_IMAGE = {"CONCHE_HOST", "CONCHE_PORT", "CONCHE_MODELS_DIR", "CONCHE_DATA_DIR"}

HEAD = """\
# Settings of `docker compose`: copy this file to .env and take the # off what is to differ.
# A variable of the same name in the shell wins over the file. Written by `make env-example`.

# Ports on this machine's loopback.
#HTTP_PORT=8080
#PROMETHEUS_PORT=9090
#ALERTMANAGER_PORT=9093
#GRAFANA_PORT=3000

# Profiles (docs/compose.md): `replicas` has REPLICAS services beside the first, and a proxy; `tls` serves
# https by tls.crt and tls.key in TLS_FOLDER.
#REPLICAS=2
#PROXY_PORT=8081
#HTTPS_PORT=8443
#TLS_FOLDER=./deploy/certificates

# What the service's container may use: CPUs (0: all of the machine) and memory.
#SERVICE_CPUS=0
#SERVICE_MEMORY=2g

# The base image that the service's image is built on, the tag it gets, the revision written into its labels,
# and what is installed into it: `serve`, or `milvus` for CONCHE_FAQ_STORE=milvus; and, on x86-64, whether
# OpenVINO is (1) or not (0).
#PYTHON_IMAGE=python:3.11-slim
#IMAGE_TAG=local
#REVISION=unknown
#REQUIREMENTS=serve
#OPENVINO=1

# Where spans go if CONCHE_TRACING=true, under what name, and how many; read by OpenTelemetry's SDK.
#OTEL_SERVICE_NAME=conche
#OTEL_RESOURCE_ATTRIBUTES=
#OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318
#OTEL_EXPORTER_OTLP_HEADERS=
#OTEL_TRACES_SAMPLER=parentbased_always_on
#OTEL_TRACES_SAMPLER_ARG=
#OTEL_PROPAGATORS=tracecontext,baggage

# The service. Host, port, models folder and data folder are the image's own; FAQ files and further bundles go
# into the volume at /data, as in CONCHE_FAQ_FILE=/data/faq.jsonl.
"""


def main() -> None:
    """Print the whole file."""
    print(HEAD, end="")
    for option in options():
        if option.variable not in FIXED_BY_IMAGE:
            text = f"# {option.info.description}"
            lines = textwrap.wrap(text, 108, subsequent_indent="# ", break_on_hyphens=False)
            print("", *lines, f"#{option.variable}={option.default}", sep="\n")


if __name__ == "__main__":
    main()
