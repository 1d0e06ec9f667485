// The producers and consumers of the driver, and what is done with them.
package main

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// client is a producer or a consumer.
type client interface {
	GracefulStop() error
}

type driver struct {
	place, accessKey, secret string
	clients                  sync.Map // by name
	messages                 sync.Map // that were received, by number
	number                   atomic.Int64
}

func newDriver(place, accessKey, secret string) *driver {
	return &driver{place: place, accessKey: accessKey, secret: secret}
}

// setConnections has the client's connections take messages of every size (gRPC's default is 4 MiB), and encrypt only
// if wanted; it does not verify certificates by itself.
func setConnections(encrypted bool) {
	options := []grpc.DialOption{grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32))}
	if !encrypted {
		options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))
	}
	connect := rmq.NewRpcClient
	rmq.NewRpcClient = func(target string, given ...rmq.RpcClientOption) (rmq.RpcClient, error) {
		return connect(target, append(given, rmq.WithRpcClientConnOption(rmq.WithDialOptions(options...)))...)
	}
}

func (d *driver) config(group string) *rmq.Config {
	keys := &credentials.SessionCredentials{AccessKey: d.accessKey, AccessSecret: d.secret}
	return &rmq.Config{Endpoint: d.place, ConsumerGroup: group, Credentials: keys}
}

// named is the client of that name, if it is a T.
func named[T any](d *driver, name string) (T, error) {
	value, _ := d.clients.Load(name)
	found, ok := value.(T)
	if !ok {
		return found, fmt.Errorf("there is no client of this kind named %q", name)
	}
	return found, nil
}

func (d *driver) produce(r request) (object, error) {
	options := []rmq.ProducerOption{rmq.WithTopics(r.Topics...)}
	if r.Attempts > 0 {
		options = append(options, rmq.WithMaxAttempts(r.Attempts))
	}
	if r.Check != "" {
		options = append(options, rmq.WithTransactionChecker(checker(r.Name, r.Check)))
	}
	producer, err := rmq.NewProducer(d.config(""), options...)
	if err != nil {
		return nil, err
	}
	if err := producer.Start(); err != nil {
		return nil, err
	}
	d.clients.Store(r.Name, producer)
	return object{}, nil
}

func checker(name, resolution string) *rmq.TransactionChecker {
	resolutions := map[string]rmq.TransactionResolution{
		"commit": rmq.COMMIT, "rollback": rmq.ROLLBACK, "unknown": rmq.UNKNOWN,
	}
	return &rmq.TransactionChecker{Check: func(message *rmq.MessageView) rmq.TransactionResolution {
		write(object{"event": "check", "name": name, "body": unfilled(message)})
		return resolutions[resolution]
	}}
}

func compose(r request) *rmq.Message {
	filling := strings.Repeat(".", max(0, r.Fill-len(r.Body)))
	message := &rmq.Message{Topic: r.Topic, Body: []byte(r.Body + filling)}
	if r.Tag != "" {
		message.SetTag(r.Tag)
	}
	message.SetKeys(r.Keys...)
	if r.Group != "" {
		message.SetMessageGroup(r.Group)
	}
	if r.Delay != 0 {
		message.SetDelayTimestamp(time.Now().Add(milliseconds(r.Delay)))
	}
	for key, value := range r.Properties {
		message.AddProperty(key, value)
	}
	return message
}

func (d *driver) send(r request) (object, error) {
	producer, err := named[rmq.Producer](d, r.Name)
	if err != nil {
		return nil, err
	}
	receipts, err := producer.Send(context.Background(), compose(r))
	if err != nil {
		return nil, err
	}
	return object{"id": receipts[0].MessageID, "recall": ""}, nil
}

func (d *driver) transact(r request) (object, error) {
	producer, err := named[rmq.Producer](d, r.Name)
	if err != nil {
		return nil, err
	}
	transaction := producer.BeginTransaction()
	receipts, err := producer.SendWithTransaction(context.Background(), compose(r), transaction)
	if err != nil {
		return nil, err
	}
	switch r.End {
	case "commit":
		err = transaction.Commit()
	case "rollback":
		err = transaction.RollBack()
	}
	return object{"id": receipts[0].MessageID}, err
}

func (d *driver) consume(r request) (object, error) {
	consumer, err := rmq.NewSimpleConsumer(d.config(r.Group), simpleOptions(r)...)
	if err != nil {
		return nil, err
	}
	if err := consumer.Start(); err != nil {
		return nil, err
	}
	d.clients.Store(r.Name, consumer)
	return object{}, nil
}

func expressions(filters map[string]filter) map[string]*rmq.FilterExpression {
	kinds := map[string]rmq.FilterExpressionType{"TAG": rmq.TAG, "SQL": rmq.SQL92}
	made := make(map[string]*rmq.FilterExpression)
	for topic, filter := range filters {
		made[topic] = rmq.NewFilterExpressionWithType(filter[1], kinds[filter[0]])
	}
	return made
}

func (d *driver) receive(r request) (object, error) {
	consumer, err := named[rmq.SimpleConsumer](d, r.Name)
	if err != nil {
		return nil, err
	}
	received, err := consumer.Receive(context.Background(), r.Count, milliseconds(r.Invisible))
	if err != nil && codeOf(err) != int32(v2.Code_MESSAGE_NOT_FOUND) {
		return nil, err
	}
	messages := make([]object, 0, len(received))
	for _, message := range received {
		number := d.number.Add(1)
		d.messages.Store(number, message)
		told := tell(message)
		told["number"] = number
		messages = append(messages, told)
	}
	return object{"messages": messages}, nil
}

// received is the simple consumer of the request and the message that it names.
func (d *driver) received(r request) (rmq.SimpleConsumer, *rmq.MessageView, error) {
	consumer, err := named[rmq.SimpleConsumer](d, r.Name)
	if err != nil {
		return nil, nil, err
	}
	message, ok := d.messages.Load(r.Number)
	if !ok {
		return nil, nil, fmt.Errorf("no message has the number %d", r.Number)
	}
	return consumer, message.(*rmq.MessageView), nil
}

func (d *driver) ack(r request) (object, error) {
	consumer, message, err := d.received(r)
	if err != nil {
		return nil, err
	}
	return object{}, consumer.Ack(context.Background(), message)
}

func (d *driver) hide(r request) (object, error) {
	consumer, message, err := d.received(r)
	if err != nil {
		return nil, err
	}
	return object{}, consumer.ChangeInvisibleDuration(message, milliseconds(r.Invisible))
}

func (d *driver) close(r request) (object, error) {
	named, err := named[client](d, r.Name)
	if err != nil {
		return nil, err
	}
	d.clients.Delete(r.Name)
	return object{}, named.GracefulStop()
}

// tell is a message as the driver's lines have it.
func tell(message *rmq.MessageView) object {
	return object{
		"id":         message.GetMessageId(),
		"topic":      message.GetTopic(),
		"body":       unfilled(message),
		"tag":        textOf(message.GetTag()),
		"keys":       append([]string{}, message.GetKeys()...),
		"group":      textOf(message.GetMessageGroup()),
		"properties": propertiesOf(message),
		"attempt":    message.GetDeliveryAttempt(),
	}
}

func unfilled(message *rmq.MessageView) string {
	return strings.TrimRight(string(message.GetBody()), ".")
}

func textOf(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}

func propertiesOf(message *rmq.MessageView) map[string]string {
	if properties := message.GetProperties(); properties != nil {
		return properties
	}
	return map[string]string{}
}

func milliseconds(count int64) time.Duration {
	return time.Duration(count) * time.Millisecond
}
