# The packages that penstock needs, as an environment in /opt/penstock. They come as wheels that the host's pip has
# fetched: whatever that needs to reach its index (a mirror, a proxy, a certificate) is needed there, and not in here.
ARG BASE
FROM ${BASE} AS made
COPY pip/ /wheels/pip/
COPY wheels/ /wheels/
RUN python3 -m venv --without-pip /opt/penstock \
    && /opt/penstock/bin/python /wheels/pip/pip.whl/pip install --no-index --no-deps --no-cache-dir /wheels/*.whl

FROM ${BASE}
COPY --from=made /opt/penstock /opt/penstock
COPY pip/ /opt/penstock/pip/
