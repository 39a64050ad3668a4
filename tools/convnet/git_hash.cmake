# Writes OUTPUT with the hash of the commit that SOURCE stands at, or an empty one outside a checkout.
# Run at each build; the file changes only if the hash does.
cmake_minimum_required(VERSION 3.25)
find_package(Git QUIET)
set(CONVNET_GIT_HASH "")
if(GIT_FOUND)
  execute_process(
    COMMAND ${GIT_EXECUTABLE} describe --always --dirty --exclude *
    WORKING_DIRECTORY ${SOURCE}
    OUTPUT_VARIABLE CONVNET_GIT_HASH OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define CONVNET_GIT_HASH \"@CONVNET_GIT_HASH@\"\n" @ONLY)
