//! The producers and consumers of the driver, and what is done with them.

use std::collections::HashMap;
use std::env;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{Message, MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::{json, Value};
use tokio::sync::RwLock;

use crate::failures::Failure;
use crate::{version, write, Request};

/// A consumer, with what it subscribes to: the client is told that anew at each receive.
struct Subscriber {
    consumer: SimpleConsumer,
    filters: Vec<(String, FilterExpression)>,
    turn: AtomicUsize,
}

/// Clients by name; those that calls are being made of are closed when these have ended.
type Named<T> = Mutex<HashMap<String, Arc<RwLock<Option<T>>>>>;

pub struct Driver {
    place: String,
    producers: Named<Producer>,
    subscribers: Named<Subscriber>,
    messages: Mutex<HashMap<u64, Arc<MessageView>>>,
    count: AtomicU64,
}

impl Driver {
    pub fn new(place: String) -> Self {
        Driver {
            place,
            producers: Default::default(),
            subscribers: Default::default(),
            messages: Default::default(),
            count: AtomicU64::new(0),
        }
    }

    fn client_option(&self) -> ClientOption {
        let mut option = ClientOption::default();
        option.set_access_url(&self.place);
        option.set_enable_tls(env::var("TLS").is_ok_and(|value| value == "1"));
        if let (Ok(key), Ok(secret)) = (env::var("ACCESS_KEY"), env::var("SECRET")) {
            if !key.is_empty() {
                option.set_access_key(key);
                option.set_secret_key(secret);
            }
        }
        option
    }

    pub async fn produce(&self, request: Request) -> Result<Value, Failure> {
        if request.attempts > 1 {
            return Err(Failure::unsupported("the client sends a message once only"));
        }
        let mut option = ProducerOption::default();
        option.set_topics(request.topics);
        let name = request.name.clone();
        let mut producer = match request.check.as_str() {
            "" => Producer::new(option, self.client_option())?,
            check => {
                let check = check.to_string();
                let checker = move |_, message: MessageView| {
                    write(json!({"event": "check", "name": name, "body": unfilled(&message)}));
                    match check.as_str() {
                        "commit" => TransactionResolution::COMMIT,
                        "rollback" => TransactionResolution::ROLLBACK,
                        _ => TransactionResolution::UNKNOWN,
                    }
                };
                Producer::new_transaction_producer(option, self.client_option(), Box::new(checker))?
            }
        };
        producer.start().await?;
        keep(&self.producers, request.name, producer);
        Ok(json!({}))
    }

    pub async fn send(&self, request: Request) -> Result<Value, Failure> {
        let named = find(&self.producers, &request.name)?;
        let producer = named.read().await;
        let receipt = opened(&producer)?.send(compose(request, false)?).await?;
        Ok(json!({"id": receipt.message_id(), "recall": ""}))
    }

    pub async fn transact(&self, request: Request) -> Result<Value, Failure> {
        let named = find(&self.producers, &request.name)?;
        let producer = named.read().await;
        let end = request.end.clone();
        let transaction = opened(&producer)?
            .send_transaction_message(compose(request, true)?)
            .await?;
        let id = transaction.message_id().to_string();
        match end.as_str() {
            "commit" => transaction.commit().await?,
            "rollback" => transaction.rollback().await?,
            _ => (),
        }
        Ok(json!({"id": id}))
    }

    pub async fn consume(&self, request: Request) -> Result<Value, Failure> {
        let mut option = SimpleConsumerOption::default();
        option.set_consumer_group(request.group);
        option.set_topics(request.filters.keys().collect());
        let mut client_option = self.client_option();
        client_option.set_long_polling_timeout(Duration::from_millis(request.r#await));
        let mut consumer = SimpleConsumer::new(option, client_option)?;
        consumer.start().await?;
        let filters = request
            .filters
            .into_iter()
            .map(|(topic, (kind, expression))| {
                let kind = if kind == "SQL" {
                    FilterType::Sql
                } else {
                    FilterType::Tag
                };
                (topic, FilterExpression::new(kind, expression))
            });
        let subscriber = Subscriber {
            consumer,
            filters: filters.collect(),
            turn: AtomicUsize::new(0),
        };
        keep(&self.subscribers, request.name, subscriber);
        Ok(json!({}))
    }

    /// Receives of one topic after another: the client asks for one topic at a time.
    pub async fn receive(&self, request: Request) -> Result<Value, Failure> {
        let named = find(&self.subscribers, &request.name)?;
        let subscriber = named.read().await;
        let Subscriber {
            consumer,
            filters,
            turn,
        } = opened(&subscriber)?;
        let (topic, expression) = &filters[turn.fetch_add(1, Ordering::Relaxed) % filters.len()];
        let invisible = Duration::from_millis(request.invisible);
        let received =
            version::receive(consumer, topic, expression, request.count, invisible).await?;
        let messages: Vec<Value> = received
            .into_iter()
            .map(|message| self.number(message))
            .collect();
        Ok(json!({"messages": messages}))
    }

    /// Keeps a message under a number, and tells it.
    fn number(&self, message: MessageView) -> Value {
        let number = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let told = json!({
            "number": number,
            "id": message.message_id(),
            "topic": message.topic(),
            "body": unfilled(&message),
            "tag": message.tag().unwrap_or_default(),
            "keys": message.keys(),
            "group": message.message_group().unwrap_or_default(),
            "properties": message.properties(),
            "attempt": message.delivery_attempt(),
        });
        self.messages
            .lock()
            .unwrap()
            .insert(number, Arc::new(message));
        told
    }

    pub async fn ack(&self, request: Request) -> Result<Value, Failure> {
        let named = find(&self.subscribers, &request.name)?;
        let subscriber = named.read().await;
        let message = self.messages.lock().unwrap().get(&request.number).cloned();
        let message = message.ok_or_else(|| {
            Failure::new(
                "Request",
                format!("no message has the number {}", request.number),
            )
        })?;
        opened(&subscriber)?.consumer.ack(&*message).await?;
        Ok(json!({}))
    }

    pub async fn close(&self, request: Request) -> Result<Value, Failure> {
        if let Ok(named) = find(&self.producers, &request.name) {
            let producer = named.write().await.take();
            version::close_producer(producer.ok_or_else(closed)?).await?;
        } else {
            let named = find(&self.subscribers, &request.name)?;
            let subscriber = named.write().await.take();
            version::close_consumer(subscriber.ok_or_else(closed)?.consumer).await?;
        }
        Ok(json!({}))
    }
}

fn keep<T>(clients: &Named<T>, name: String, client: T) {
    clients
        .lock()
        .unwrap()
        .insert(name, Arc::new(RwLock::new(Some(client))));
}

fn find<T>(clients: &Named<T>, name: &str) -> Result<Arc<RwLock<Option<T>>>, Failure> {
    let found = clients.lock().unwrap().get(name).cloned();
    found.ok_or_else(|| {
        Failure::new(
            "Request",
            format!("there is no client of this kind named {name:?}"),
        )
    })
}

fn opened<T>(client: &Option<T>) -> Result<&T, Failure> {
    client.as_ref().ok_or_else(closed)
}

fn closed() -> Failure {
    Failure::new("Request", "the client is closed".to_string())
}

fn compose(request: Request, transactional: bool) -> Result<impl Message, Failure> {
    let mut body = request.body.into_bytes();
    body.resize(body.len().max(request.fill), b'.');
    let mut builder = MessageBuilder::builder()
        .set_topic(request.topic)
        .set_body(body)
        .set_keys(request.keys)
        .set_properties(request.properties);
    if !request.tag.is_empty() {
        builder = builder.set_tag(request.tag);
    }
    if !request.group.is_empty() {
        builder = builder.set_message_group(request.group);
    }
    if request.delay != 0 {
        builder =
            builder.set_delivery_timestamp(second_after(Duration::from_millis(request.delay)));
    }
    if transactional {
        builder = builder.enable_transaction();
    }
    Ok(builder.build()?)
}

/// The first whole second that is not before the end of *delay*: the client knows no parts of seconds.
fn second_after(delay: Duration) -> i64 {
    let end = SystemTime::now() + delay;
    end.duration_since(UNIX_EPOCH)
        .expect("the clock is after 1970")
        .as_secs_f64()
        .ceil() as i64
}

fn unfilled(message: &MessageView) -> String {
    String::from_utf8_lossy(message.body())
        .trim_end_matches('.')
        .to_string()
}
