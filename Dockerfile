# docker build -t hf_vanilla .
# docker run --rm hf_vanilla python scripts/demo.py       # train the demo's model and translate
# docker run --rm -p 7860:7860 hf_vanilla                 # the app; trains that model first
FROM python:3.11-slim

WORKDIR /srv/hf_vanilla
COPY constraints.txt ./
RUN pip install --no-cache-dir --constraint constraints.txt torch \
    --index-url https://download.pytorch.org/whl/cpu
COPY pyproject.toml README.md LICENSE ./
COPY scripts scripts
COPY hf_vanilla hf_vanilla
RUN pip install --no-cache-dir --constraint constraints.txt --editable ".[app,demo]" \
    && useradd --create-home --uid 1000 user && mkdir runs && chown user runs
USER 1000
EXPOSE 7860
CMD ["python", "scripts/app.py", "--host", "0.0.0.0", "--fixed_model", "True"]
