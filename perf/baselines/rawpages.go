package baselines

import "golang.org/x/sys/unix"

// pagesPerCall is how many pages one gathered call names: 1 MiB of 4 KiB pages; the kernel takes 1,024.
const pagesPerCall = 256

// scattered moves the command's pages by gathered calls, in the order of a step: what a copy of scattered pages costs
// when nobody asks for them, checks them or says where they go.
func (s *Stream) scattered(c Command, block []byte, step uint64, call func(int, [][]byte) (int, error)) error {
	var room [pagesPerCall][]byte
	for at := uint64(0); at < uint64(c.Count); at += pagesPerCall {
		pages := room[:min(pagesPerCall, uint64(c.Count)-at)]
		for i := range pages {
			pages[i] = block[Jump(at+uint64(i), uint64(c.Count), step)*c.Size:][:c.Size]
		}
		for len(pages) > 0 {
			n, err := call(s.fd, pages)
			switch {
			case err == unix.EAGAIN || err == unix.EINTR:
				if err := s.wait(err); err != nil {
					return err
				}
			case err != nil:
				return err
			case n == 0:
				return errPeerClosed
			default:
				pages = advance(pages, n)
			}
		}
	}
	return nil
}

// advance drops the first n bytes.
func advance(pages [][]byte, n int) [][]byte {
	for len(pages) > 0 && n >= len(pages[0]) {
		n -= len(pages[0])
		pages = pages[1:]
	}
	if n > 0 {
		pages[0] = pages[0][n:]
	}
	return pages
}
