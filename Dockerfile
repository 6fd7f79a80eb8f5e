# CPU image: docker build -t pseudocore . && docker run --rm -v "$PWD:/work" pseudocore demo --out demo
FROM python:3.12-slim
RUN pip install --no-cache-dir torch --index-url https://download.pytorch.org/whl/cpu
COPY pyproject.toml README.md LICENSE /src/
COPY src /src/src
RUN pip install --no-cache-dir "/src[report,images]" && useradd --create-home user
USER user
WORKDIR /work
ENTRYPOINT ["pseudocore"]
