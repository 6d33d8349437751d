# One image for gateway and workers: `docker build -t taskgate .`, then docker-compose.yml or `docker run taskgate gateway`.
# PYTHON_DIGEST pins the base image where a registry serves it: --build-arg PYTHON_DIGEST=@sha256:...
ARG PYTHON_TAG=3.13-slim
ARG PYTHON_DIGEST=
FROM python:${PYTHON_TAG}${PYTHON_DIGEST} AS build
WORKDIR /src
RUN python -m venv /opt/taskgate
ENV PATH=/opt/taskgate/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# Extras of pyproject.toml; demo is what the built-in report and thumbnail tasks need.
ARG EXTRAS=demo
# What is installed from others changes rarely: a layer of its own, made before the project's files are there.
COPY pyproject.toml constraints.txt ./
RUN mkdir taskgate app workers \
    && pip install --quiet --constraint constraints.txt hatchling \
    && pip install --quiet --constraint constraints.txt --no-build-isolation ".[$EXTRAS]"
COPY taskgate taskgate
COPY app app
COPY workers workers
RUN pip install --quiet --no-deps --no-build-isolation --force-reinstall . \
    && pip uninstall --quiet --yes hatchling pathspec pluggy tomlkit trove-classifiers

FROM python:${PYTHON_TAG}${PYTHON_DIGEST}
RUN useradd --system --no-create-home --uid 10001 taskgate
COPY --from=build /opt/taskgate /opt/taskgate
ENV PATH=/opt/taskgate/bin:$PATH PYTHONUNBUFFERED=1
USER taskgate
WORKDIR /tmp
STOPSIGNAL SIGTERM
EXPOSE 8080
ENTRYPOINT ["taskgate"]
CMD ["--help"]
