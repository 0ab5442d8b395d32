# The image of agents, workers and the operator, for CPUs. From the repository's root:
#
#   docker build -f deploy/docker/cpu.Dockerfile -t resilin:0.1.0-cpu .
#
# Python packages are pinned by hash in requirements-*.txt. Name the base by its digest for builds that can be repeated:
# --build-arg BASE=debian@sha256:...
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
# Versions are those of Debian's stable release at the time, with its security updates: older ones are taken off its servers.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends g++ python3-dev python3-venv \
 && rm -rf /var/lib/apt/lists/*
COPY deploy/docker/requirements-build.txt deploy/docker/requirements-cpu.txt /build/
RUN python3 -m venv /build/tools \
 && /build/tools/bin/pip install --no-cache-dir --require-hashes --requirement /build/requirements-build.txt \
 && python3 -m venv --without-pip /opt/resilin \
 && /build/tools/bin/pip --python /opt/resilin/bin/python install --no-cache-dir --no-deps --require-hashes --only-binary :all: \
      --requirement /build/requirements-cpu.txt
COPY pyproject.toml CMakeLists.txt README.md LICENSE /build/source/
COPY resilin /build/source/resilin
COPY resilin-stubs /build/source/resilin-stubs
ENV PATH=/build/tools/bin:$PATH
RUN RESILIN_NATIVE=1 /build/tools/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /build/wheel /build/source \
 && /build/tools/bin/pip --python /opt/resilin/bin/python install --no-cache-dir --no-deps --no-index /build/wheel/*.whl \
 && /opt/resilin/bin/python -c 'import resilin.core._native, resilin.distributed._native, resilin.rpc._native'

FROM ${BASE}
LABEL org.opencontainers.image.title="resilin" \
      org.opencontainers.image.description="Elastic training that survivors go on with: CPU" \
      org.opencontainers.image.licenses="Apache-2.0"
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends libstdc++6 python3 \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --user-group --create-home --shell /usr/sbin/nologin resilin
COPY --from=build /opt/resilin /opt/resilin
COPY examples /opt/examples/examples
ENV PATH=/opt/resilin/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /opt/examples
USER 10001:10001
ENTRYPOINT ["elastic-run"]
CMD ["--help"]
