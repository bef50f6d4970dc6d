package cuda

import "fmt"

// Result is CUresult, with the driver's numbers.
type Result uint32

const (
	Success            Result = 0
	InvalidValue       Result = 1
	OutOfMemory        Result = 2
	NotInitialized     Result = 3
	Deinitialized      Result = 4 // the process is on its way out
	NoDevice           Result = 100
	InvalidDevice      Result = 101
	InvalidContext     Result = 201
	ECCUncorrectable   Result = 214
	InvalidHandle      Result = 400
	NotFound           Result = 500
	NotReady           Result = 600
	IllegalAddress     Result = 700
	ContextDestroyed   Result = 709
	LaunchFailed       Result = 719
	NotPermitted       Result = 800
	NotSupported       Result = 801
	SystemNotReady     Result = 802
	DriverMismatch     Result = 803
	CompatNotSupported Result = 804
	Unknown            Result = 999
)

// Effect says what a failed call may have done.
type Effect uint8

const (
	None  Effect = iota // nothing has happened
	Maybe               // it may have happened, in part or whole
	Done                // it has happened; something behind it failed
)

var effectNames = [...]string{"nothing has happened", "it may have happened", "it has happened"}

func (e Effect) String() string { return effectNames[e] }

// CallError is a driver call that failed.
type CallError struct {
	Call   string // the C name, such as "cuMemAlloc_v2"
	Object string // what it was about, such as "GPU 0"
	Result Result
	Name   string // the driver's name of the result, such as "CUDA_ERROR_OUT_OF_MEMORY"
	Effect Effect
}

func (e *CallError) Error() string {
	return fmt.Sprintf("cuda: %s of %s: %s (%d); %v", e.Call, e.Object, e.Name, uint32(e.Result), e.Effect)
}

// Is matches another *CallError of the same result, so that errors.Is(err, &CallError{Result: OutOfMemory}) works.
func (e *CallError) Is(target error) bool {
	other, ok := target.(*CallError)
	return ok && other.Call == "" && other.Result == e.Result
}
