// The driver of the official Node.js client; ../README.md says what it is told and what it answers.
const readline = require('node:readline');
const {
  ClientException, ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer,
} = require('rocketmq-client-nodejs');
const { FilterType, TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const RESOLUTIONS = {
  commit: TransactionResolution.COMMIT,
  rollback: TransactionResolution.ROLLBACK,
  unknown: TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED,
};

class Unsupported extends Error {}

// Standard output is ours alone; what others write there goes to standard error.
const output = process.stdout.write.bind(process.stdout);
process.stdout.write = process.stderr.write.bind(process.stderr);
const write = (line) => output(`${JSON.stringify(line)}\n`);

const { ACCESS_KEY = '', SECRET = '', TLS } = process.env;
const configuration = {
  endpoints: process.argv[2],
  namespace: '',
  sslEnabled: TLS === '1',
  sessionCredentials: ACCESS_KEY ? { accessKey: ACCESS_KEY, accessSecret: SECRET } : undefined,
};
const clients = new Map();
const received = new Map();

const actions = {
  async producer({ name, topics = [], attempts, check }) {
    const checker = check && {
      async check(message) {
        write({ event: 'check', name, body: bodyOf(message) });
        return RESOLUTIONS[check];
      },
    };
    return start(name, new Producer({ ...configuration, topics, maxAttempts: attempts || undefined, checker }));
  },

  async send(request) {
    const receipt = await clients.get(request.name).send(toMessage(request));
    return { id: receipt.messageId, recall: receipt.recallHandle };
  },

  async transaction(request) {
    const producer = clients.get(request.name);
    const transaction = producer.beginTransaction();
    const receipt = await producer.send(toMessage(request), transaction);
    if (request.end) await transaction[request.end]();
    return { id: receipt.messageId };
  },

  async recall({ name, topic, handle }) {
    const receipt = await clients.get(name).recallMessage(topic, handle);
    return { id: receipt.messageId };
  },

  async simple({ name, group, await: awaitDuration = 0, filters }) {
    return start(name, new SimpleConsumer({
      ...configuration, consumerGroup: group, awaitDuration, subscriptions: subscriptions(filters),
    }));
  },

  async receive({ name, count, invisible }) {
    const messages = await clients.get(name).receive(count, invisible);
    return {
      messages: messages.map((message) => {
        const number = received.size + 1;
        received.set(number, message);
        return { ...describe(message), number };
      }),
    };
  },

  async ack({ name, number }) {
    await clients.get(name).ack(received.get(number));
    return {};
  },

  async hide({ name, number, invisible }) {
    await clients.get(name).changeInvisibleDuration(received.get(number), invisible);
    return {};
  },

  async push({ name, group, filters, threads, fail = {}, hold = 0 }) {
    if (threads) throw new Unsupported('listeners are asynchronous functions and have no threads');
    const messageListener = {
      async consume(view) {
        const message = describe(view);
        const success = message.attempt > (fail[message.body] ?? fail['*'] ?? 0);
        write({ event: 'begin', name, at: Date.now(), message });
        await new Promise((resolve) => setTimeout(resolve, hold));
        write({ event: 'end', name, at: Date.now(), message, result: success ? 'success' : 'failure' });
        return success ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE;
      },
    };
    return start(name, new PushConsumer({
      ...configuration, consumerGroup: group, subscriptions: subscriptions(filters), messageListener,
    }));
  },

  async close({ name }) {
    const client = clients.get(name);
    clients.delete(name);
    await client.shutdown();
    return {};
  },
};

async function start(name, client) {
  await client.startup();
  clients.set(name, client);
  return {};
}

function subscriptions(filters) {
  return new Map(Object.entries(filters).map(
    ([topic, [type, expression]]) => [topic, new FilterExpression(expression, FilterType[type])],
  ));
}

function toMessage({ topic, body = '', fill = 0, tag, keys, group, delay, properties = {} }) {
  const text = Buffer.from(body);
  return {
    topic,
    body: Buffer.concat([text, Buffer.alloc(Math.max(fill - text.length, 0), '.')]),
    tag: tag || undefined,
    keys,
    messageGroup: group || undefined,
    delay: delay || undefined,
    properties: new Map(Object.entries(properties)),
  };
}

function describe(message) {
  return {
    id: message.messageId,
    topic: message.topic,
    body: bodyOf(message),
    tag: message.tag ?? '',
    keys: message.keys,
    group: message.messageGroup ?? '',
    properties: Object.fromEntries(message.properties),
    attempt: message.deliveryAttempt,
  };
}

// The body without its filling.
function bodyOf(message) {
  return message.body.toString().replace(/\.+$/, '');
}

// The status is in the client's exception, or at the end of the text of an error that is none.
function describeError(error) {
  const causes = [];
  for (let cause = error; cause; cause = cause.cause) causes.push(cause);
  const main = causes.find((cause) => cause instanceof ClientException) ?? error;
  const text = causes.map(String).join('; ');
  const code = main instanceof ClientException ? main.code : Number(/\(code: (\d+)\)$/.exec(text)?.[1] ?? 0);
  return { kind: main.constructor.name, code, text };
}

async function answer({ id, request, ...fields }) {
  try {
    if (!Object.hasOwn(actions, request)) throw new Unsupported(`there is no request ${request}`);
    write({ id, ok: await actions[request](fields) });
  } catch (error) {
    write({ id, error: describeError(error) });
  }
}

// The client lets errors of its streams go astray when the broker dies.
process.on('uncaughtException', console.error);
process.on('unhandledRejection', console.error);

readline.createInterface({ input: process.stdin })
  .on('line', (line) => answer(JSON.parse(line)))
  .on('close', () => process.exit(0));
