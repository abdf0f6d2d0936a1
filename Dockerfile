# Two images from one file:
#   docker build --target gateway -t ackgate .        the gateway
#   docker build --target spark -t ackgate-spark .    Spark with the connector, for master, worker, jobs
ARG PYTHON=python:3.11-slim-bookworm

FROM ${PYTHON} AS build
WORKDIR /src
RUN python -m venv /opt/ackgate
ENV PATH=/opt/ackgate/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1
# The dependencies first: this layer changes only with the lock.
COPY requirements/gateway.lock requirements/
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --no-deps --require-hashes -r requirements/gateway.lock
COPY . .
RUN pip install --no-deps --no-build-isolation .

FROM build AS build-spark
COPY requirements/demo.lock requirements/
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --no-deps --require-hashes -r requirements/demo.lock

FROM ${PYTHON} AS gateway
RUN useradd --uid 10001 --create-home --shell /usr/sbin/nologin ackgate \
 && install -d -o ackgate -g ackgate /data
COPY --from=build /opt/ackgate /opt/ackgate
# All interfaces of the container; what reaches them is the deployment's choice.
ENV PATH=/opt/ackgate/bin:$PATH PYTHONUNBUFFERED=1 \
    ACKGATE_HOST=0.0.0.0 ACKGATE_PORT=8080 ACKGATE_DATA_DIR=/data ACKGATE_LOG_FORMAT=json
USER ackgate
WORKDIR /home/ackgate
VOLUME /data
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s --retries=3 CMD ["python", "-c", \
    "import os, urllib.request as u; u.urlopen(f'http://127.0.0.1:{os.environ[\"ACKGATE_PORT\"]}/health/ready', timeout=2)"]
ENTRYPOINT ["ackgate"]
CMD ["serve"]

FROM ${PYTHON} AS spark
# procps: Spark's start scripts look at processes.
RUN apt-get update \
 && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --create-home --shell /usr/sbin/nologin ackgate \
 && install -d -o ackgate -g ackgate /data
COPY --from=build-spark /opt/ackgate /opt/ackgate
ENV PATH=/opt/ackgate/bin:$PATH PYTHONUNBUFFERED=1 \
    SPARK_HOME=/opt/ackgate/lib/python3.11/site-packages/pyspark \
    PYSPARK_PYTHON=/opt/ackgate/bin/python
USER ackgate
WORKDIR /home/ackgate
VOLUME /data
CMD ["spark-class", "org.apache.spark.deploy.master.Master"]
