# A broker by the contract of the public apache/kafka image: KAFKA_* variables become its settings, CLUSTER_ID formats
# its storage, files in /mnt/shared/config win. The translation is Kafka's own (kafka.docker.KafkaDockerWrapper).
ARG BASE
FROM ${BASE}
COPY libs/ /opt/kafka/libs/
COPY kafka/ /etc/kafka/docker/
RUN mkdir -p /opt/kafka/config /mnt/shared/config /etc/kafka/secrets /var/lib/kafka/data \
    && chown -R 1000:1000 /opt/kafka/config /mnt/shared/config /etc/kafka/secrets /var/lib/kafka
USER 1000:1000
VOLUME ["/etc/kafka/secrets", "/mnt/shared/config", "/var/lib/kafka/data"]
EXPOSE 9092
CMD ["/etc/kafka/docker/run"]
