//! What an error of the client is called, and the status of the protocol that it carries.

use rocketmq::error::ClientError;
use serde::Serialize;

#[derive(Serialize)]
pub struct Failure {
    kind: String,
    code: i32,
    text: String,
}

impl Failure {
    pub fn new(kind: &str, text: String) -> Self {
        Failure {
            kind: kind.to_string(),
            code: 0,
            text,
        }
    }

    pub fn unsupported(lack: &str) -> Self {
        Failure::new("Unsupported", lack.to_string())
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let status = error.context().iter().find(|(key, _)| *key == "code");
        let causes = error.source().map(|source| source.chain().skip(1)); // Display has the first
        let causes = causes
            .into_iter()
            .flatten()
            .map(|cause| format!(": {cause}"));
        Failure {
            kind: format!("{:?}", error.kind()),
            code: status.map_or(0, |(_, name)| code(name)),
            text: error.to_string() + &causes.collect::<String>(),
        }
    }
}

/// The number of a status: the client tells its name only.
fn code(name: &str) -> i32 {
    match name {
        "MULTIPLE_RESULTS" => 30000,
        "BAD_REQUEST" => 40000,
        "ILLEGAL_ACCESS_POINT" => 40001,
        "ILLEGAL_TOPIC" => 40002,
        "ILLEGAL_CONSUMER_GROUP" => 40003,
        "ILLEGAL_MESSAGE_TAG" => 40004,
        "ILLEGAL_MESSAGE_KEY" => 40005,
        "ILLEGAL_MESSAGE_GROUP" => 40006,
        "ILLEGAL_MESSAGE_PROPERTY_KEY" => 40007,
        "INVALID_TRANSACTION_ID" => 40008,
        "ILLEGAL_MESSAGE_ID" => 40009,
        "ILLEGAL_FILTER_EXPRESSION" => 40010,
        "ILLEGAL_INVISIBLE_TIME" => 40011,
        "ILLEGAL_DELIVERY_TIME" => 40012,
        "INVALID_RECEIPT_HANDLE" => 40013,
        "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE" => 40014,
        "UNRECOGNIZED_CLIENT_TYPE" => 40015,
        "MESSAGE_CORRUPTED" => 40016,
        "CLIENT_ID_REQUIRED" => 40017,
        "ILLEGAL_POLLING_TIME" => 40018,
        "UNAUTHORIZED" => 40100,
        "PAYMENT_REQUIRED" => 40200,
        "FORBIDDEN" => 40300,
        "NOT_FOUND" => 40400,
        "MESSAGE_NOT_FOUND" => 40401,
        "TOPIC_NOT_FOUND" => 40402,
        "CONSUMER_GROUP_NOT_FOUND" => 40403,
        "REQUEST_TIMEOUT" => 40800,
        "PAYLOAD_TOO_LARGE" => 41300,
        "MESSAGE_BODY_TOO_LARGE" => 41301,
        "PRECONDITION_FAILED" => 42800,
        "TOO_MANY_REQUESTS" => 42900,
        "REQUEST_HEADER_FIELDS_TOO_LARGE" => 43100,
        "MESSAGE_PROPERTIES_TOO_LARGE" => 43101,
        "INTERNAL_ERROR" => 50000,
        "INTERNAL_SERVER_ERROR" => 50001,
        "HA_NOT_AVAILABLE" => 50002,
        "NOT_IMPLEMENTED" => 50100,
        "PROXY_TIMEOUT" => 50400,
        "MASTER_PERSISTENCE_TIMEOUT" => 50401,
        "SLAVE_PERSISTENCE_TIMEOUT" => 50402,
        "UNSUPPORTED" => 50500,
        "VERSION_UNSUPPORTED" => 50501,
        "VERIFY_FIFO_MESSAGE_UNSUPPORTED" => 50502,
        "FAILED_TO_CONSUME_MESSAGE" => 60000,
        _ => 0,
    }
}
