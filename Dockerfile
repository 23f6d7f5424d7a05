# Reads traces and plans runs: no torch, no GPU. To record, install stepscope into the training image.
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src src
RUN pip wheel --no-cache-dir --wheel-dir /wheels ".[sql]"

FROM python:3.12-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --no-index --find-links /wheels "stepscope[sql]" \
    && rm -rf /wheels \
    && useradd --create-home stepscope
USER stepscope
WORKDIR /data
ENTRYPOINT ["stepscope"]
CMD ["--help"]
