# Fails if one of OBJECTS (joined by |) defines a weak function.
string(REPLACE "|" ";" objects "${OBJECTS}")
foreach(object ${objects})
  execute_process(COMMAND ${NM} -C --defined-only ${object}
    OUTPUT_VARIABLE symbols RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "cannot list the symbols of ${object}")
  endif()
  string(REGEX MATCHALL "[^\n]* [Ww] [^\n]*" weak "${symbols}")
  if(weak)
    message(FATAL_ERROR "${object} defines weak functions: ${weak}")
  endif()
endforeach()
