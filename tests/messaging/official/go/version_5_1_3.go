// What the client has since v5.1.3: push consumers, and options of simple consumers that are named for these.

//go:build !v5_1_2

package main

import (
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

func simpleOptions(r request) []rmq.SimpleConsumerOption {
	return []rmq.SimpleConsumerOption{
		rmq.WithSimpleAwaitDuration(milliseconds(r.Await)),
		rmq.WithSimpleSubscriptionExpressions(expressions(r.Filters)),
	}
}

func (d *driver) push(r request) (object, error) {
	options := []rmq.PushConsumerOption{
		rmq.WithPushSubscriptionExpressions(expressions(r.Filters)),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: listener(r)}),
	}
	if r.Threads > 0 {
		options = append(options, rmq.WithPushConsumptionThreadCount(r.Threads))
	}
	consumer, err := rmq.NewPushConsumer(d.config(r.Group), options...)
	if err != nil {
		return nil, err
	}
	if err := consumer.Start(); err != nil {
		return nil, err
	}
	d.clients.Store(r.Name, consumer)
	return object{}, nil
}

// listener handles messages as the request says, and writes when it begins and ends.
func listener(r request) func(*rmq.MessageView) rmq.ConsumerResult {
	return func(message *rmq.MessageView) rmq.ConsumerResult {
		told := tell(message)
		write(object{"event": "begin", "name": r.Name, "at": time.Now().UnixMilli(), "message": told})
		time.Sleep(milliseconds(r.Hold))
		failures, ok := r.Fail[unfilled(message)]
		if !ok {
			failures = r.Fail["*"]
		}
		result, word := rmq.SUCCESS, "success"
		if message.GetDeliveryAttempt() <= failures {
			result, word = rmq.FAILURE, "failure"
		}
		write(object{
			"event": "end", "name": r.Name, "at": time.Now().UnixMilli(), "message": told, "result": word,
		})
		return result
	}
}
