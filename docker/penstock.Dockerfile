# Penstock itself, on top of its libraries: a small layer, so that a changed line of code costs seconds.
ARG BASE
FROM ${BASE} AS spark
COPY own/ /opt/penstock/own/
RUN /opt/penstock/bin/python /opt/penstock/pip/pip.whl/pip install --no-index --no-deps --no-cache-dir \
        /opt/penstock/own/*.whl \
    && mkdir -p /job && chown 1000:1000 /job
ENV PATH=/opt/penstock/bin:$PATH
WORKDIR /job
USER 1000:1000
ENTRYPOINT ["penstock"]
CMD ["--help"]

FROM spark AS coordinator
ENTRYPOINT ["penstock", "coordinator"]
