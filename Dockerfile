# docker build -t hf_vanilla .
# docker run --rm hf_vanilla python scripts/demo.py       # train the demo's model and translate
# docker run --rm -p 7860:7860 hf_vanilla                 # the service, with the model in the package
# docker run --rm -p 7860:7860 -v hf_cache:/srv/cache hf_vanilla    # keeps models of the Hub
FROM python:3.11-slim

WORKDIR /srv/hf_vanilla
COPY constraints.txt ./
RUN pip install --no-cache-dir --constraint constraints.txt torch \
    --index-url https://download.pytorch.org/whl/cpu
COPY pyproject.toml README.md LICENSE ./
COPY scripts scripts
COPY hf_vanilla hf_vanilla
RUN pip install --no-cache-dir --constraint constraints.txt --editable ".[serve,demo]" \
    && useradd --create-home --uid 1000 user && mkdir runs /srv/cache && chown user runs /srv/cache
ENV HF_HOME=/srv/cache
VOLUME /srv/cache
USER 1000
EXPOSE 7860
HEALTHCHECK --start-period=60s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:7860/health', timeout=5)"]
CMD ["hf-vanilla", "serve", "--host", "0.0.0.0", "--port", "7860"]
