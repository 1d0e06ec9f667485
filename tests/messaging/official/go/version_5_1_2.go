// What stands for the neighbouring file with v5.1.2 of the client: build with the tag v5_1_2 then.

//go:build v5_1_2

package main

import rmq "github.com/apache/rocketmq-clients/golang/v5"

func simpleOptions(r request) []rmq.SimpleConsumerOption {
	return []rmq.SimpleConsumerOption{
		rmq.WithAwaitDuration(milliseconds(r.Await)),
		rmq.WithSubscriptionExpressions(expressions(r.Filters)),
	}
}

func (d *driver) push(request) (object, error) {
	return nil, unsupported("the client has no push consumers in this version")
}
