# Reads traces and plans runs: no torch, no GPU. To record, install stepscope into the training image.
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY scripts/build-native scripts/
COPY src src
RUN pip wheel --no-cache-dir --wheel-dir /wheels ".[sql]"

FROM python:3.12-slim
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels "stepscope[sql]" \
    && stepscope --version | grep "scanner: compiled" \
    && useradd --create-home stepscope
# Under any --user the cache is not in the mounted folder.
ENV XDG_CACHE_HOME=/tmp
USER stepscope
WORKDIR /data
ENTRYPOINT ["stepscope"]
CMD ["--help"]
