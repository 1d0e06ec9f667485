// The driver of the official Java client; ../README.md says what it is told and what it answers.
// The JSON library is the one inside the client's jar.
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;
import org.apache.rocketmq.shaded.com.google.gson.Gson;

public final class Driver {
    private static final Gson GSON = new Gson();
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final Pattern CODE = Pattern.compile("response-code=(\\d+)");

    private final PrintStream output = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
    private final ClientConfiguration configuration;
    private final Map<String, AutoCloseable> clients = new ConcurrentHashMap<>();
    private final Map<Integer, MessageView> received = new ConcurrentHashMap<>();
    private final AtomicInteger receivedCount = new AtomicInteger();

    /** A request of any kind; fields that a line lacks keep what they have here. */
    private static final class Request {
        int id;
        String request = "";
        String name = "";
        List<String> topics = List.of();
        int attempts;
        String check = "";
        String topic = "";
        String body = "";
        int fill;
        String tag = "";
        List<String> keys = List.of();
        String group = "";
        long delay;
        Map<String, String> properties = Map.of();
        String end = "";
        String handle = "";
        long await;
        Map<String, List<String>> filters = Map.of();
        int count;
        long invisible;
        int number;
        int threads;
        Map<String, Integer> fail = Map.of();
        long hold;
    }

    private Driver(String endpoints) {
        var builder = ClientConfiguration.newBuilder().setEndpoints(endpoints).enableSsl("1".equals(System.getenv("TLS")));
        String accessKey = System.getenv().getOrDefault("ACCESS_KEY", "");
        if (!accessKey.isEmpty()) {
            builder.setCredentialProvider(new StaticSessionCredentialsProvider(accessKey, System.getenv("SECRET")));
        }
        configuration = builder.build();
    }

    public static void main(String[] args) throws Exception {
        System.setOut(System.err);
        Driver driver = new Driver(args[0]);
        ExecutorService threads = Executors.newCachedThreadPool();
        var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            Request request = GSON.fromJson(line, Request.class);
            threads.execute(() -> driver.answer(request));
        }
        Runtime.getRuntime().halt(0);
    }

    private void answer(Request request) {
        try {
            write(Map.of("id", request.id, "ok", perform(request)));
        } catch (Throwable error) {
            write(Map.of("id", request.id, "error", describe(error)));
        }
    }

    private Map<String, Object> perform(Request request) throws Exception {
        switch (request.request) {
            case "producer":
                clients.put(request.name, newProducer(request));
                return Map.of();
            case "send":
                var receipt = producer(request).send(message(request));
                String handle = receipt.getRecallHandle();
                return Map.of("id", receipt.getMessageId().toString(), "recall", handle == null ? "" : handle);
            case "transaction":
                return transact(request);
            case "recall":
                return Map.of("id", producer(request).recallMessage(request.topic, request.handle).getMessageId().toString());
            case "simple":
                clients.put(request.name, newSimpleConsumer(request));
                return Map.of();
            case "receive":
                return receive(request);
            case "ack":
                simpleConsumer(request).ack(received.get(request.number));
                return Map.of();
            case "hide":
                simpleConsumer(request).changeInvisibleDuration(
                    received.get(request.number), Duration.ofMillis(request.invisible));
                return Map.of();
            case "push":
                clients.put(request.name, newPushConsumer(request));
                return Map.of();
            case "close":
                clients.remove(request.name).close();
                return Map.of();
            default:
                throw new UnsupportedOperationException("there is no request " + request.request);
        }
    }

    private Producer newProducer(Request request) throws ClientException {
        var builder = PROVIDER.newProducerBuilder()
            .setClientConfiguration(configuration)
            .setTopics(request.topics.toArray(String[]::new));
        if (request.attempts > 0) {
            builder.setMaxAttempts(request.attempts);
        }
        if (!request.check.isEmpty()) {
            var resolution = TransactionResolution.valueOf(request.check.toUpperCase());
            builder.setTransactionChecker(view -> {
                write(Map.of("event", "check", "name", request.name, "body", body(view)));
                return resolution;
            });
        }
        return builder.build();
    }

    private Map<String, Object> transact(Request request) throws ClientException {
        Producer producer = producer(request);
        Transaction transaction = producer.beginTransaction();
        var receipt = producer.send(message(request), transaction);
        if (request.end.equals("commit")) {
            transaction.commit();
        } else if (request.end.equals("rollback")) {
            transaction.rollback();
        }
        return Map.of("id", receipt.getMessageId().toString());
    }

    private AutoCloseable newSimpleConsumer(Request request) throws ClientException {
        return PROVIDER.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup(request.group)
            .setAwaitDuration(Duration.ofMillis(request.await))
            .setSubscriptionExpressions(filters(request))
            .build();
    }

    private Map<String, Object> receive(Request request) throws ClientException {
        List<Object> messages = new ArrayList<>();
        for (MessageView view : simpleConsumer(request).receive(request.count, Duration.ofMillis(request.invisible))) {
            int number = receivedCount.incrementAndGet();
            received.put(number, view);
            Map<String, Object> message = describe(view);
            message.put("number", number);
            messages.add(message);
        }
        return Map.of("messages", messages);
    }

    private AutoCloseable newPushConsumer(Request request) throws ClientException {
        var builder = PROVIDER.newPushConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup(request.group)
            .setSubscriptionExpressions(filters(request))
            .setMessageListener(view -> listen(request, view));
        if (request.threads > 0) {
            builder.setConsumptionThreadCount(request.threads);
        }
        return builder.build();
    }

    private ConsumeResult listen(Request request, MessageView view) {
        Map<String, Object> message = describe(view);
        int failures = request.fail.getOrDefault(body(view), request.fail.getOrDefault("*", 0));
        boolean success = view.getDeliveryAttempt() > failures;
        write(Map.of("event", "begin", "name", request.name, "at", System.currentTimeMillis(), "message", message));
        try {
            Thread.sleep(request.hold);
        } catch (InterruptedException interruption) {
            Thread.currentThread().interrupt();
        }
        write(Map.of("event", "end", "name", request.name, "at", System.currentTimeMillis(), "message", message,
            "result", success ? "success" : "failure"));
        return success ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE;
    }

    private Producer producer(Request request) {
        return (Producer) clients.get(request.name);
    }

    private SimpleConsumer simpleConsumer(Request request) {
        return (SimpleConsumer) clients.get(request.name);
    }

    private static Message message(Request request) {
        byte[] text = request.body.getBytes(StandardCharsets.UTF_8);
        byte[] body = Arrays.copyOf(text, Math.max(text.length, request.fill));
        Arrays.fill(body, text.length, body.length, (byte) '.');
        var builder = PROVIDER.newMessageBuilder().setTopic(request.topic).setBody(body);
        builder.setKeys(request.keys.toArray(String[]::new));
        request.properties.forEach(builder::addProperty);
        if (!request.tag.isEmpty()) {
            builder.setTag(request.tag);
        }
        if (!request.group.isEmpty()) {
            builder.setMessageGroup(request.group);
        }
        if (request.delay > 0) {
            builder.setDeliveryTimestamp(System.currentTimeMillis() + request.delay);
        }
        return builder.build();
    }

    private static Map<String, FilterExpression> filters(Request request) {
        Map<String, FilterExpression> filters = new HashMap<>();
        request.filters.forEach((topic, filter) -> {
            var type = filter.get(0).equals("SQL") ? FilterExpressionType.SQL92 : FilterExpressionType.TAG;
            filters.put(topic, new FilterExpression(filter.get(1), type));
        });
        return filters;
    }

    private static Map<String, Object> describe(MessageView view) {
        Collection<String> keys = view.getKeys();
        Map<String, Object> message = new HashMap<>();
        message.put("id", view.getMessageId().toString());
        message.put("topic", view.getTopic());
        message.put("body", body(view));
        message.put("tag", view.getTag().orElse(""));
        message.put("keys", keys);
        message.put("group", view.getMessageGroup().orElse(""));
        message.put("properties", view.getProperties());
        message.put("attempt", view.getDeliveryAttempt());
        return message;
    }

    /** The body without its filling. */
    private static String body(MessageView view) {
        ByteBuffer body = view.getBody();
        return StandardCharsets.UTF_8.decode(body).toString().replaceAll("\\.+$", "");
    }

    /** The client's exception has no accessor for the status; its message begins with it. */
    private static Map<String, Object> describe(Throwable error) {
        Throwable main = error;
        List<String> texts = new ArrayList<>();
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            texts.add(cause.toString());
            if (cause instanceof ClientException && !(main instanceof ClientException)) {
                main = cause;
            }
        }
        String text = String.join("; ", texts);
        Matcher code = CODE.matcher(text);
        String kind = error instanceof UnsupportedOperationException ? "Unsupported" : main.getClass().getSimpleName();
        return Map.of("kind", kind, "code", code.find() ? Integer.parseInt(code.group(1)) : 0, "text", text);
    }

    private synchronized void write(Object line) {
        output.println(GSON.toJson(line));
    }
}
