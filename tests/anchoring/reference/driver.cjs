// Sidetree's reference implementation as a program: one JSON request a line on stdin, one JSON answer a line on stdout.
// Node's module path must lead to the packages of package.json. Bytes travel in base64.
'use strict';
const crypto = require('crypto');
const readline = require('readline');
const { promisify } = require('util');
const gzip = promisify(require('zlib').gzip);

const LIB = '@decentralized-identity/sidetree/dist/lib';
const V1 = `${LIB}/core/versions/1.0`;
const load = (path) => require(path).default;
const BatchWriter = load(`${V1}/BatchWriter`);
const ChunkFile = load(`${V1}/ChunkFile`);
const Did = load(`${V1}/Did`);
const DocumentComposer = load(`${V1}/DocumentComposer`);
const Operation = load(`${V1}/Operation`);
const OperationProcessor = load(`${V1}/OperationProcessor`);
const Resolver = load(`${LIB}/core/Resolver`);
const TransactionProcessor = load(`${V1}/TransactionProcessor`);
const yieldable = require('yieldable-json');
load(`${LIB}/common/Logger`).initialize({ info() {}, warn() {}, error() {} });

const FREE_OF_LOCKS = { normalizedFeeToPerOperationFeeMultiplier: 0, valueTimeLockAmountMultiplier: 0 };
const MANY = 1e9;
const files = new Map();
let operations = new Map();

function base32(bytes) {
  let bits = '';
  for (const byte of bytes) bits += byte.toString(2).padStart(8, '0');
  return bits.match(/.{1,5}/g).map((part) => 'abcdefghijklmnopqrstuvwxyz234567'[parseInt(part.padEnd(5, '0'), 2)]).join('');
}

function nameOf(bytes) {
  return 'b' + base32(Buffer.concat([Buffer.from([1, 0x55, 0x12, 0x20]), crypto.createHash('sha256').update(bytes).digest()]));
}

const cas = {
  async write(bytes) { files.set(nameOf(bytes), bytes); return nameOf(bytes); },
  async download(uri, most) {
    const content = files.get(uri);
    if (content === undefined) return { code: 'content_not_found' };
    return content.length > most ? { code: 'content_exceeds_maximum_allowed_size' } : { code: 'success', content };
  },
};
const store = {
  async insertOrReplace(found) {
    for (const operation of found) {
      const key = `${operation.transactionNumber}/${operation.operationIndex}/${operation.type}`;
      if (!operations.has(operation.didUniqueSuffix)) operations.set(operation.didUniqueSuffix, new Map());
      operations.get(operation.didUniqueSuffix).set(key, operation);
    }
  },
  async get(suffix) {
    return [...(operations.get(suffix) ?? new Map()).values()].sort(
      (a, b) => a.transactionNumber - b.transactionNumber || a.operationIndex - b.operationIndex);
  },
};
const processor = new TransactionProcessor(
  cas, store, { getValueTimeLock: async () => undefined }, { getVersionMetadata: () => FREE_OF_LOCKS });
const resolver = new Resolver({ getOperationProcessor: () => new OperationProcessor() }, store);

let failed = null; // the parser throws some faults where nobody can catch them
process.on('uncaughtException', (error) => { if (failed) failed(error); else { console.error(error); process.exit(1); } });

function parse(text) {
  return new Promise((resolve, reject) => {
    failed = () => reject(new Error('uncaught'));
    yieldable.parseAsync(Buffer.from(text, 'base64'), (error, value) => (error ? reject(error) : resolve(value)));
  }).finally(() => { failed = null; });
}

const commands = {
  async parse({ texts }) {
    const found = [];
    for (const text of texts) {
      found.push(await parse(text).then((value) => JSON.stringify(value), (error) => ({ error: error.message })));
    }
    return found;
  },
  async judge({ deltas }) {
    const found = [];
    for (const delta of deltas) {
      const text = Buffer.concat([Buffer.from('{"deltas":['), Buffer.from(delta, 'base64'), Buffer.from(']}')]);
      found.push(await ChunkFile.parse(await gzip(text)).then(() => 'ok', (error) => error.code ?? error.message));
    }
    return found;
  },
  async take({ requests }) {
    const found = [];
    for (const request of requests) {
      found.push(await Operation.parse(Buffer.from(request, 'base64')).then(() => 'ok', (error) => error.code ?? error.message));
    }
    return found;
  },
  async write({ requests }) {
    files.clear();
    const anchors = [];
    const queue = {
      peek: async () => requests.map((request) => ({ operationBuffer: Buffer.from(request, 'base64') })),
      dequeue: async () => undefined,
    };
    const blockchain = {
      getLatestTime: async () => ({ time: 1 }), getFee: async () => 0, getWriterValueTimeLock: async () => undefined,
      write: async (anchor) => { anchors.push(anchor); },
    };
    const confirmations = { getLastSubmitted: async () => undefined, submit: async () => undefined };
    await new BatchWriter(queue, blockchain, cas, { getVersionMetadata: () => FREE_OF_LOCKS }, confirmations).write();
    return { anchor: anchors[0], files: [...files.values()].map((bytes) => bytes.toString('base64')) };
  },
  async read({ batches }) {
    const found = [];
    for (const { number, anchor, contents } of batches) {
      files.clear();
      for (const bytes of contents) await cas.write(Buffer.from(bytes, 'base64'));
      found.push(await processor.processTransaction({
        anchorString: anchor, transactionNumber: number, transactionTime: number, transactionTimeHash: '', writer: 'any',
        transactionFeePaid: MANY, normalizedTransactionFee: 0,
      }).catch(() => false)); // as its observer does
    }
    return found;
  },
  async resolve({ dids, method }) {
    const found = [];
    for (const name of dids) {
      try {
        const did = await Did.create(name, method);
        let state = await resolver.resolve(did.uniqueSuffix);
        const published = state !== undefined;
        if (!published && did.createOperation !== undefined) {
          const anchored = { ...did.createOperation, didUniqueSuffix: did.uniqueSuffix, transactionNumber: 0, transactionTime: 0, operationIndex: 0 };
          state = await new OperationProcessor().apply(anchored, undefined);
        }
        found.push(state === undefined ? null : JSON.stringify(DocumentComposer.transformToExternalDocument(state, did, published)));
      } catch (error) {
        found.push({ error: error.code ?? error.message });
      }
    }
    return found;
  },
  async forget() { operations = new Map(); files.clear(); },
};

(async () => {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const request = JSON.parse(line);
    let answer;
    try {
      answer = { value: await commands[request.command](request) ?? null };
    } catch (error) {
      answer = { error: String(error.code ?? error.stack) };
    }
    process.stdout.write(JSON.stringify(answer) + '\n');
  }
})();
