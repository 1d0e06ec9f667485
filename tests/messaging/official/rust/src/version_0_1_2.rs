//! What stands for `version.rs` with 0.1.2 of the client: build with the feature `v0_1_2` then.

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
        .receive_with_batch_size(topic, expression, count, invisible)
        .await
}

pub async fn close_producer(_: Producer) -> Result<(), Failure> {
    Err(Failure::unsupported("the client cannot close a producer"))
}

pub async fn close_consumer(_: SimpleConsumer) -> Result<(), Failure> {
    Err(Failure::unsupported("the client cannot close a consumer"))
}
