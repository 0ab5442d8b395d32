// Functions of Python as spans (`with_stack`): a profile function of the interpreter in threads that asked for it.
#pragma once
#include "recorder.hpp"

namespace resilin::tracing {

void start_python_calls(Ring *ring); // in this thread, and in those that call trace_this_thread
void stop_python_calls();            // in all: the others stop at their next call
void trace_this_thread();
extern thread_local bool recording; // this thread calls Python in order to record: such calls are no spans

} // namespace resilin::tracing
