# One image for gateway, workers and command line: `docker build -t taskgate .`, then docker-compose.yml or
# `docker run taskgate gateway | worker | up | submit …`. Own handlers: mounted at /handlers, or FROM taskgate (docs/containers.md).
# PYTHON_DIGEST pins the base image where a registry serves it: --build-arg PYTHON_DIGEST=@sha256:...
ARG PYTHON_TAG=3.13-slim
ARG PYTHON_DIGEST=
FROM python:${PYTHON_TAG}${PYTHON_DIGEST} AS build
WORKDIR /src
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
# What builds the wheel stays in this stage; what the service needs goes to /made, versions as in constraints.txt.
COPY constraints.txt ./
RUN python -m pip install --quiet --constraint constraints.txt hatchling
# Extras of pyproject.toml; demo is what the built-in report and thumbnail tasks need.
ARG EXTRAS=demo
ARG INTO="--root /made --prefix /usr/local --ignore-installed --no-compile --no-warn-script-location"
# What is installed from others changes rarely: a layer of its own, made before the project's files are there.
COPY pyproject.toml ./
RUN mkdir taskgate app workers \
    && python -m pip install --quiet --constraint constraints.txt --no-build-isolation $INTO ".${EXTRAS:+[$EXTRAS]}"
COPY taskgate taskgate
COPY app app
COPY workers workers
# Compiled here, since the image is read-only later; tracebacks show where the files will be.
RUN python -m pip install --quiet --no-deps --no-build-isolation --force-reinstall $INTO . \
    && find /made -type d -name tests -prune -exec rm -rf {} + \
    && python -m compileall -q -j 0 -s /made /made/usr/local/lib

FROM python:${PYTHON_TAG}${PYTHON_DIGEST}
# tini is process 1: it passes signals on and reaps what anybody leaves behind, also after a plain `docker run`.
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/* \
    && groupadd --gid 10001 taskgate && useradd --no-create-home --uid 10001 --gid 10001 taskgate \
    && install -d -o taskgate -g taskgate /data /handlers /run/taskgate /run/tls
COPY --from=build /made/usr/local /usr/local
COPY deploy/healthcheck.py /usr/local/share/taskgate/
ENV PYTHONUNBUFFERED=1 TASKGATE_DATA_DIR=/data TASKGATE_WORKER_HEALTH_PORT=9090 DEMO_FILES=/tmp/demo-files
USER taskgate
# Modules named by TASKGATE_HANDLERS are found in the working directory.
WORKDIR /handlers
STOPSIGNAL SIGTERM
EXPOSE 8080 9090
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s CMD ["python", "-S", "/usr/local/share/taskgate/healthcheck.py"]
ENTRYPOINT ["tini", "--", "taskgate"]
CMD ["--help"]
