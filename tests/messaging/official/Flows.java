// The official Java client against the broker at args[0]; prints what each flow found as one line of JSON.
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

public class Flows {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static ClientConfiguration configuration;

    public static void main(String[] args) throws Exception {
        configuration = ClientConfiguration.newBuilder().setEndpoints(args[0]).enableSsl(false).build();
        Collection<String> asked = new ConcurrentLinkedQueue<>();
        Producer producer = PROVIDER.newProducerBuilder()
            .setClientConfiguration(configuration)
            .setTopics("j-normal", "j-fifo", "j-delay", "j-halves", "j-pushed")
            .setTransactionChecker(view -> {
                asked.add(text(view));
                return TransactionResolution.COMMIT;
            })
            .build();
        List<String> found = new ArrayList<>();

        producer.send(message("j-normal", "hello").setTag("t").setKeys("k").build());
        found.add("\"normal\": " + json(simple("j-normal", "j-g1", 1)));

        for (int number = 0; number < 5; number++) {
            producer.send(message("j-fifo", "" + number).setMessageGroup("g").build());
        }
        found.add("\"fifo\": " + json(simple("j-fifo", "j-g2", 5)));

        long due = System.currentTimeMillis() + 2000;
        producer.send(message("j-delay", "later").setDeliveryTimestamp(due).build());
        SendReceipt taken = producer.send(message("j-delay", "never").setDeliveryTimestamp(due).build());
        producer.recallMessage("j-delay", taken.getRecallHandle());
        List<String> delayed = simple("j-delay", "j-g3", 1);
        found.add("\"delay\": [" + json(delayed) + ", " + (System.currentTimeMillis() >= due - 100) + "]");

        for (String end : List.of("commit", "rollback", "orphan")) {
            Transaction transaction = producer.beginTransaction();
            producer.send(message("j-halves", end).build(), transaction);
            if (end.equals("commit")) {
                transaction.commit();
            } else if (end.equals("rollback")) {
                transaction.rollback();
            }
        }
        List<String> halves = simple("j-halves", "j-g4", 2);
        Collections.sort(halves);
        found.add("\"halves\": [" + json(halves) + ", " + json(new TreeSet<>(asked)) + "]");

        found.add("\"pushed\": " + json(pushed(producer)));
        System.out.println("{" + String.join(", ", found) + "}");
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    static List<String> pushed(Producer producer) throws Exception {
        Collection<String> got = new ConcurrentLinkedQueue<>();
        PushConsumer consumer = PROVIDER.newPushConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup("j-g5")
            .setSubscriptionExpressions(Collections.singletonMap("j-pushed", FilterExpression.SUB_ALL))
            .setMessageListener(view -> {
                got.add(text(view) + (view.getDeliveryAttempt() > 1 ? " again" : ""));
                boolean fails = text(view).equals("3") && view.getDeliveryAttempt() == 1;
                return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            })
            .build();
        for (int number = 0; number < 5; number++) {
            producer.send(message("j-pushed", "" + number).build());
        }
        long deadline = System.currentTimeMillis() + 30_000;
        while (got.size() < 6 && System.currentTimeMillis() < deadline) {
            Thread.sleep(20);
        }
        consumer.close();
        return new ArrayList<>(new TreeSet<>(got));
    }

    static List<String> simple(String topic, String group, int count) throws Exception {
        List<String> got = new ArrayList<>();
        try (SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup(group)
            .setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL))
            .build()) {
            long deadline = System.currentTimeMillis() + 30_000;
            while (got.size() < count && System.currentTimeMillis() < deadline) {
                for (MessageView view : consumer.receive(16, Duration.ofSeconds(30))) {
                    got.add(text(view));
                    consumer.ack(view);
                }
            }
        }
        return got;
    }

    static MessageBuilder message(String topic, String body) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    static String text(MessageView view) {
        return StandardCharsets.UTF_8.decode(view.getBody()).toString();
    }

    static String json(Collection<String> texts) {
        return texts.stream().map(text -> '"' + text + '"').collect(Collectors.joining(", ", "[", "]"));
    }
}
