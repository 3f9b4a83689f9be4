# `joules` in a container, for tables, pictures and reports of run files. At the top of the repository:
#
#   docker build -f powerd/deploy/containers/joules.Dockerfile -t joules .
#   docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/runs" joules tables run.h5
#
# Volume: /runs has the run files, and gets what is written. A training is recorded where it runs: install powerd there.
#
# Its steps were tried one by one in an environment of their own; Docker itself has not built it.

FROM python:3.13-slim AS build
COPY pyproject.toml hatch_build.py README.md LICENSE /source/
COPY powerd /source/powerd
COPY client /source/client
COPY analytics /source/analytics
RUN python -m venv /opt/powerd && /opt/powerd/bin/pip install --no-cache-dir '/source[analytics]'

FROM python:3.13-slim
COPY --from=build /opt/powerd /opt/powerd
RUN useradd --system --uid 7361 --home-dir /runs --create-home joules
USER joules
WORKDIR /runs
# Whoever --user names has no home here.
ENV PATH=/opt/powerd/bin:$PATH HOME=/tmp
VOLUME ["/runs"]
# It answers and ends: there is no service to look at.
HEALTHCHECK NONE
ENTRYPOINT ["joules"]
CMD ["--help"]
