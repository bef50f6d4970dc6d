package lanes

import (
	"errors"
	"time"
)

// ConnectPatience is how long one connect of any plane may take. The system asks a silent address ever more seldom, in the
// end half a minute apart: that it answers again, or another one does, would be found that late.
const ConnectPatience = 5 * time.Second

// ErrSilent ends the stream of such a connect.
var ErrSilent = errors.New("nobody answered in time")
