# Three stages: the environment, the models, and both of them on a bare base.
# Nothing here names a registry or a package index; pip and the engine use their own settings.
ARG PYTHON_IMAGE=python:3.11-slim

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
# serve, or milvus: the same with the client of Milvus, for CONCHE_FAQ_STORE=milvus.
ARG REQUIREMENTS=serve
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
# Without pip and setuptools: the environment is copied as it is, and nothing is installed into it later.
RUN python -m venv --without-pip /opt/conche
# The second engine, on x86-64 (CONCHE_ENGINE): 1 or 0. It adds 100 MB, and to the first start the loading of
# each model in both engines; where the processor has AMX it is several times faster, in bfloat16.
ARG OPENVINO=1
COPY requirements/build.txt requirements/serve.txt requirements/milvus.txt requirements/openvino.txt requirements/
# Before the code, so that a change of code does not fetch the dependencies anew. --no-deps, since the locks are whole
# but for the client of the model hub, which `tokenizers` names.
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip install --quiet --require-hashes -r requirements/build.txt \
    && python -m pip --python /opt/conche/bin/python install --quiet --no-deps --require-hashes \
        -r "requirements/$REQUIREMENTS.txt" \
    && if [ "$OPENVINO-$(uname -m)" = 1-x86_64 ]; then \
        python -m pip --python /opt/conche/bin/python install --quiet --no-deps --require-hashes -r requirements/openvino.txt; \
    fi
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY model model
COPY service service
RUN python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir /tmp/wheels . \
    && python -m pip --python /opt/conche/bin/python install --quiet --no-deps --no-index /tmp/wheels/*.whl
# What serving never loads, 166 MB of it, is taken out again; the script says what and why.
COPY deploy/slim_image.py /tmp/
RUN python /tmp/slim_image.py /opt/conche/lib/python3.*/site-packages

FROM ${PYTHON_IMAGE} AS models
COPY models /models
# Whatever the modes in the checkout, the service's user can read them. Links between bundles stay links.
RUN chmod -R a+rX,go-w /models

FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="conche" \
      org.opencontainers.image.description="Sentence embeddings, FAQ search and named entities over HTTP" \
      org.opencontainers.image.licenses="Apache-2.0 AND MIT AND CC-BY-SA-4.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# A fixed number, so that file owners of a volume and `runAsUser` in a cluster can name it.
RUN groupadd --gid 10001 conche \
    && useradd --uid 10001 --gid conche --no-log-init --home-dir /data --no-create-home --shell /usr/sbin/nologin conche \
    && install -d -o conche -g conche /data
COPY --from=models /models /opt/conche/models
COPY --from=build /opt/conche /opt/conche
COPY LICENSE NOTICE deploy/sbom/conche.cdx.json /opt/conche/
# PYTHONDONTWRITEBYTECODE: the root file system may be read-only, and the code came compiled.
ENV PATH=/opt/conche/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    CONCHE_HOST=0.0.0.0 \
    CONCHE_PORT=8080 \
    CONCHE_MODELS_DIR=/opt/conche/models \
    CONCHE_DATA_DIR=/data \
    CONCHE_SHUTDOWN_DELAY_SECONDS=5
WORKDIR /data
USER 10001:10001
EXPOSE 8080
STOPSIGNAL SIGTERM
# Python and not curl: the slim image has no curl. http.client and not urllib: it heeds no proxy variable.
HEALTHCHECK --interval=10s --timeout=5s --start-period=180s --retries=3 \
    CMD ["python", "-c", "import http.client as h, os, ssl, sys; e = os.environ.get; a = ('127.0.0.1', int(e('CONCHE_PORT'))); c = h.HTTPConnection(*a, timeout=4) if (e('CONCHE_TLS_CERT') or 'none') == 'none' else h.HTTPSConnection(*a, timeout=4, context=ssl._create_unverified_context()); c.request('GET', '/readyz'); sys.exit(c.getresponse().status != 200)"]
# No shell in between: SIGTERM must reach the service itself.
ENTRYPOINT ["conche"]
CMD ["serve"]
