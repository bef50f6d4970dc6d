package orbitte

import (
	"errors"

	"github.com/orbitte/orbitte/cuda"
)

// classOfCUDA sorts an error of the CUDA owners; nil: it is none.
func classOfCUDA(err error) error {
	var call *cuda.CallError
	switch {
	case errors.Is(err, cuda.ErrUnquiesced), errors.Is(err, cuda.ErrRetained):
		return ErrUnquiesced
	case isAny(err, cuda.ErrOldDriver, cuda.ErrNoDevice, cuda.ErrProhibited, cuda.ErrNotUnified):
		return ErrUnavailable
	case isAny(err, cuda.ErrUnknown, cuda.ErrHostMemory, cuda.ErrManaged, cuda.ErrForeign, cuda.ErrOrdinal, cuda.ErrExtent, cuda.ErrStale):
		return ErrInvalid
	case errors.Is(err, cuda.ErrBusy):
		return ErrConflict
	case errors.As(err, &call) && call.Result == cuda.OutOfMemory:
		return ErrExhausted
	case errors.As(err, &call):
		return ErrSystem
	}
	return nil
}

func isAny(err error, targets ...error) bool {
	for _, target := range targets {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}
