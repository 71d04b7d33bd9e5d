# pbgeval for NVIDIA GPUs. Build it from the root of the repository:
#
#   docker build -f docker/cuda.Dockerfile -t pbgeval:cuda .
#   docker run --rm --gpus all -v "$PWD:/data" pbgeval:cuda run eval.py --output results/mine
#
# PyTorch's wheel brings CUDA. The host needs the NVIDIA driver and the NVIDIA Container Toolkit.
FROM python:3.11-slim

# Triton needs a C compiler at run time. Debian's stable release sets its version.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/pbgeval
COPY pyproject.toml setup.py PACKAGE.md LICENSE constraints.txt ./
COPY pbgeval pbgeval
# The user's home keeps compiled loops and kernels.
RUN pip install --no-cache-dir -c constraints.txt ".[import,tables,report,monitor,s3,gpu]" \
    && useradd --create-home --uid 1000 pbgeval

ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

USER 1000
WORKDIR /data
ENTRYPOINT ["kgeval-dist"]
CMD ["--help"]
