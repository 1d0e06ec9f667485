//! A driver of the official Rust client of RocketMQ 5: reads requests from standard input and writes answers and events
//! to standard output, as the README of the folder above says.

mod clients;
mod failures;
#[cfg_attr(feature = "v0_1_2", path = "version_0_1_2.rs")]
mod version;

use std::collections::HashMap;
use std::io::{stdin, stdout, BufRead, Write};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{json, Value};

use clients::Driver;
use failures::Failure;

/// Any request: what does not belong to its kind is empty.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Request {
    id: i64,
    request: String,
    name: String,
    topics: Vec<String>,
    attempts: i32,
    check: String,
    topic: String,
    body: String,
    fill: usize,
    tag: String,
    keys: Vec<String>,
    group: String,
    delay: u64,
    properties: HashMap<String, String>,
    end: String,
    r#await: u64,
    filters: HashMap<String, (String, String)>,
    count: i32,
    invisible: u64,
    number: u64,
}

/// Prints one line of JSON, whole.
fn write(line: Value) {
    let mut output = stdout().lock();
    writeln!(output, "{line}")
        .and_then(|()| output.flush())
        .expect("standard output is open");
}

/// Carries out a request and writes what came of it; the client panics at some errors.
async fn answer(driver: Arc<Driver>, request: Request) {
    let id = request.id;
    let outcome = match tokio::spawn(carry_out(driver, request)).await {
        Ok(outcome) => outcome,
        Err(panic) => Err(Failure::new("Panic", panic.to_string())),
    };
    match outcome {
        Ok(result) => write(json!({"id": id, "ok": result})),
        Err(failure) => write(json!({"id": id, "error": failure})),
    }
}

async fn carry_out(driver: Arc<Driver>, request: Request) -> Result<Value, Failure> {
    match request.request.as_str() {
        "producer" => driver.produce(request).await,
        "send" => driver.send(request).await,
        "transaction" => driver.transact(request).await,
        "simple" => driver.consume(request).await,
        "receive" => driver.receive(request).await,
        "ack" => driver.ack(request).await,
        "close" => driver.close(request).await,
        "recall" => Err(Failure::unsupported("the client cannot recall messages")),
        "hide" => Err(Failure::unsupported(
            "the client cannot change how long a message is invisible",
        )),
        "push" => Err(Failure::unsupported("the client has no push consumers")),
        other => Err(Failure::new(
            "Request",
            format!("there is no request {other:?}"),
        )),
    }
}

#[tokio::main]
async fn main() {
    let driver = Arc::new(Driver::new(
        std::env::args().nth(1).expect("HOST:PORT is given"),
    ));
    let runtime = tokio::runtime::Handle::current();
    let reader = std::thread::spawn(move || {
        for line in stdin().lock().lines().map_while(Result::ok) {
            match serde_json::from_str(&line) {
                Ok(request) => drop(runtime.spawn(answer(driver.clone(), request))),
                Err(error) => {
                    write(json!({"id": 0, "error": Failure::new("Request", error.to_string())}))
                }
            }
        }
        std::process::exit(0);
    });
    reader.join().expect("the reader ends the process");
}
