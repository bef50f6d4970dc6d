// Programs to measure against. A module of their own, so that users of OrbitTE never see what they need.
module github.com/orbitte/orbitte/perf/peers

go 1.26.0

require (
	github.com/orbitte/orbitte v0.0.0
	github.com/panjf2000/gnet/v2 v2.9.7
	google.golang.org/grpc v1.85.0
)

require (
	github.com/panjf2000/ants/v2 v2.11.3 // indirect
	github.com/valyala/bytebufferpool v1.0.0 // indirect
	go.uber.org/multierr v1.11.0 // indirect
	go.uber.org/zap v1.27.0 // indirect
	golang.org/x/net v0.60.0 // indirect
	golang.org/x/sync v0.23.0 // indirect
	golang.org/x/sys v0.50.0 // indirect
	golang.org/x/text v0.42.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260817212433-ac3dfec99bb1 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
	gopkg.in/natefinch/lumberjack.v2 v2.2.1 // indirect
)

replace github.com/orbitte/orbitte => ../..
