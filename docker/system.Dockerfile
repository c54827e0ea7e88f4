# What the images stand on: Debian with Python, and that with Java. BASE is any Debian or Ubuntu image with Python 3.11
# or newer, in it or among its packages; what it has already is left as it is.
ARG BASE
FROM ${BASE} AS python
ENV LANG=C.UTF-8 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
RUN command -v python3 \
    || (apt-get -o Acquire::Retries=3 update \
        && DEBIAN_FRONTEND=noninteractive apt-get -o Acquire::Retries=3 install -y --no-install-recommends python3 \
        && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/apt/archives/*.deb)
# Spark wants a name for its user, so a number alone is not enough.
RUN id -u 1000 >/dev/null 2>&1 || useradd --uid 1000 --create-home penstock

FROM python AS java
# The man pages' folder: the JRE's packages fail to configure where a slim image has none.
RUN command -v java \
    || (mkdir -p /usr/share/man/man1 \
        && apt-get -o Acquire::Retries=3 update \
        && DEBIAN_FRONTEND=noninteractive apt-get -o Acquire::Retries=3 install -y --no-install-recommends \
            openjdk-17-jre-headless \
        && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/apt/archives/*.deb)
