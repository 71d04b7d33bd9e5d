# pbgeval for CPUs. Build it from the root of the repository:
#
#   docker build -f docker/cpu.Dockerfile -t pbgeval:cpu --build-arg TORCH_INDEX=URL .
#   docker run --rm -v "$PWD:/data" pbgeval:cpu run eval.py --output results/mine
#
# URL is the package index of PyTorch's CPU build: see https://pytorch.org/get-started/locally/ (Linux, Pip, CPU).
# Without it, the image contains the CUDA build, which takes 5 GB more.
FROM python:3.11-slim

ARG TORCH_INDEX=""
RUN if [ -n "$TORCH_INDEX" ]; then pip install --no-cache-dir --index-url "$TORCH_INDEX" torch==2.13.0; fi

WORKDIR /opt/pbgeval
COPY pyproject.toml setup.py PACKAGE.md LICENSE constraints.txt ./
COPY pbgeval pbgeval
# The user's home keeps compiled loops.
RUN pip install --no-cache-dir -c constraints.txt ".[import,tables,report,monitor,s3]" \
    && useradd --create-home --uid 1000 pbgeval

USER 1000
WORKDIR /data
ENTRYPOINT ["kgeval-dist"]
CMD ["--help"]
