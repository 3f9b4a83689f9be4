# The daemon in a container. At the top of the repository:
#
#   docker build -f powerd/deploy/containers/powerd.Dockerfile -t powerd .
#   docker run -d --network host -v /etc/powerd:/etc/powerd:ro -v powerd:/var/lib/powerd \
#       --device /dev/i2c-2 --group-add "$(stat -c %g /dev/i2c-2)" powerd
#   docker run --rm powerd run --sim                       # without hardware
#
# Devices: --device /dev/i2c-N, /dev/ttyACM0, /dev/usbtmc0, each with --group-add of the group that owns it; --gpus all
# for the source nvml. Docker hides RAPL's counters from containers: run powerd outside for these.
# Volumes: /etc/powerd has powerd.toml, /var/lib/powerd the spool and, in keys, the keys.
# With --network host clients of this machine reach 127.0.0.1:7360. Without it, `listen` names another address, which
# needs keys, and the health check the address of a client that is allowed.
#
# Its steps were tried one by one in an environment of their own; Docker itself has not built it.

FROM python:3.13-slim AS build
COPY pyproject.toml hatch_build.py README.md LICENSE /source/
COPY powerd /source/powerd
COPY client /source/client
COPY analytics /source/analytics
RUN python -m venv /opt/powerd && /opt/powerd/bin/pip install --no-cache-dir '/source[board]' nvidia-ml-py

FROM python:3.13-slim
COPY --from=build /opt/powerd /opt/powerd
RUN useradd --system --uid 7360 --home-dir /var/lib/powerd --create-home powerd
USER powerd
WORKDIR /var/lib/powerd
ENV PATH=/opt/powerd/bin:$PATH POWERD_KEYS=/var/lib/powerd/keys
VOLUME ["/var/lib/powerd"]
HEALTHCHECK --interval=30s --timeout=10s CMD ["powerd", "stats"]
ENTRYPOINT ["powerd"]
CMD ["run", "--config", "/etc/powerd/powerd.toml"]
