# Reads traces and plans runs: no torch, no GPU. To record, install stepscope into the training image.
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY scripts/build-native scripts/
COPY src src
RUN python -m venv /opt/stepscope \
    && /opt/stepscope/bin/pip install --no-cache-dir ".[sql]" \
    && /opt/stepscope/bin/stepscope --version | grep "scanner: compiled"

FROM python:3.12-slim
COPY --from=build /opt/stepscope /opt/stepscope
RUN useradd --create-home stepscope
# Under any --user the cache is not in the mounted folder.
ENV PATH=/opt/stepscope/bin:$PATH XDG_CACHE_HOME=/tmp
USER stepscope
WORKDIR /data
ENTRYPOINT ["stepscope"]
CMD ["--help"]
