#pragma once

namespace resilin::dist {

// A system call was interrupted: take the GIL, run Python's signal handlers, throw what they raise.
void check_signals();

} // namespace resilin::dist
