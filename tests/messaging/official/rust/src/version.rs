//! What the client has since 5.0.0: an end of its producers and consumers, and another name for a receive.

use std::time::Duration;

use rocketmq::error::ClientError;
use rocketmq::model::common::FilterExpression;
use rocketmq::model::message::MessageView;
use rocketmq::{Producer, SimpleConsumer};

use crate::failures::Failure;

pub async fn receive(
    consumer: &SimpleConsumer,
    topic: &str,
    expression: &FilterExpression,
    count: i32,
    invisible: Duration,
) -> Result<Vec<MessageView>, ClientError> {
    consumer
        .receive_with(topic, expression, count, invisible)
        .await
}

pub async fn close_producer(producer: Producer) -> Result<(), Failure> {
    Ok(producer.shutdown().await?)
}

pub async fn close_consumer(consumer: SimpleConsumer) -> Result<(), Failure> {
    Ok(consumer.shutdown().await?)
}
