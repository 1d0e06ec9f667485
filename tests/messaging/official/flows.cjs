// The official Node.js client against the broker at argv[2]; prints what each flow found as one line of JSON.
const { Producer, PushConsumer, SimpleConsumer, ConsumeResult } = require('rocketmq-client-nodejs');
const { TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const endpoints = process.argv[2];
const quiet = { info() {}, warn() {}, error() {}, debug() {}, close() {} };
const body = (message) => message.body.toString();
const found = {};

async function simple(topic, group, count) {
  const consumer = new SimpleConsumer({
    endpoints, consumerGroup: group, subscriptions: new Map([[topic, '*']]), awaitDuration: 5000, logger: quiet,
  });
  await consumer.startup();
  const got = [];
  const deadline = Date.now() + 30000;
  while (got.length < count && Date.now() < deadline) {
    for (const message of await consumer.receive(16, 30000)) {
      got.push(body(message));
      await consumer.ack(message);
    }
  }
  await consumer.shutdown();
  return got;
}

async function main() {
  const asked = [];
  const checker = {
    async check(message) {
      asked.push(body(message));
      return TransactionResolution.COMMIT;
    },
  };
  // One producer a topic: with three topics or more a start of this client may hang for minutes.
  async function started(topic) {
    const producer = new Producer({ endpoints, topic, checker, logger: quiet });
    await producer.startup();
    return producer;
  }

  let producer = await started('n-normal');
  await producer.send({ topic: 'n-normal', tag: 't', keys: ['k'], body: Buffer.from('hello') });
  found.normal = await simple('n-normal', 'n-g1', 1);

  producer = await started('n-fifo');
  for (let number = 0; number < 5; number++) {
    await producer.send({ topic: 'n-fifo', messageGroup: 'g', body: Buffer.from(String(number)) });
  }
  found.fifo = await simple('n-fifo', 'n-g2', 5);

  producer = await started('n-delay');
  const begin = Date.now();
  await producer.send({ topic: 'n-delay', delay: 2000, body: Buffer.from('later') });
  const taken = await producer.send({ topic: 'n-delay', delay: 2000, body: Buffer.from('never') });
  await producer.recallMessage('n-delay', taken.recallHandle);
  found.delay = [await simple('n-delay', 'n-g3', 1), Date.now() - begin >= 1900];

  producer = await started('n-halves');
  for (const end of ['commit', 'rollback', 'orphan']) {
    const transaction = producer.beginTransaction();
    await producer.send({ topic: 'n-halves', body: Buffer.from(end) }, transaction);
    if (end !== 'orphan') await transaction[end]();
  }
  found.halves = [(await simple('n-halves', 'n-g4', 2)).sort(), [...new Set(asked)]];

  const pushed = [];
  const consumer = new PushConsumer({
    endpoints, namespace: '', consumerGroup: 'n-g5', subscriptions: new Map([['n-pushed', '*']]), logger: quiet,
    messageListener: {
      async consume(message) {
        pushed.push(body(message));
        return ConsumeResult.SUCCESS;
      },
    },
  });
  await consumer.startup();
  producer = await started('n-pushed');
  for (let number = 0; number < 5; number++) {
    await producer.send({ topic: 'n-pushed', body: Buffer.from(String(number)) });
  }
  const deadline = Date.now() + 30000;
  while (pushed.length < 5 && Date.now() < deadline) await new Promise((resolve) => setTimeout(resolve, 20));
  found.pushed = pushed.sort();

  console.log(JSON.stringify(found));
  process.exit(0);
}

main().catch((error) => {
  console.log(JSON.stringify({ ...found, error: String(error && error.stack) }));
  process.exit(1);
});
